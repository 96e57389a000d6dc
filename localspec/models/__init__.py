"""Pairs by name: what they are, whether they fit, and how they get here."""
