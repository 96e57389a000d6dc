"""The chat screen, and what it does with questions, replies and reports of the engine."""
