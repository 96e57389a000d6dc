"""Messages, images and tools as prompt tokens."""
