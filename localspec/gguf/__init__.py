"""Reads GGUF headers, and what they say of a model."""
