"""Benchmarks, comparisons and tests of whole replies."""
