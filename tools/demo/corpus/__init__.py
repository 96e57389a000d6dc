"""The demo pair's training text, made by this package alone and the same for the same seed."""
