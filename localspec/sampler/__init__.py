"""From logits to the distribution that a token is drawn from."""
