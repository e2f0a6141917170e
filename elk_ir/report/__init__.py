"""What a person looks at: the report of a simulation, explanations and differences of plans."""
