"""Which pairs there are, where their files lie, and whether they can be trusted."""
