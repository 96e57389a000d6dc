"""How a pair opens: a plan of its memory, its models, contexts and drafters."""
