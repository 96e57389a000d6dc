"""The sampler: from logits to the distribution of a token."""
