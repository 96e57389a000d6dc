"""Convert messages to tokens, and tokens to text."""
