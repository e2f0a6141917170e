"""NorthPole without IR: a network as blocks, its mapping to cards, and the time of its pipeline."""
