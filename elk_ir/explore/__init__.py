"""Design-space exploration: many models, chips and policies, one row of a SQLite file each."""
