"""Embeddings of texts, and scores of documents for a query, from a small model of its own."""
