"""The loop of speculative decoding, and the rules that accept or reject draft tokens."""
