"""The drafters: they propose tokens."""
