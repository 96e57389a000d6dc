"""Find, fetch, plan and load a pair by its name."""
