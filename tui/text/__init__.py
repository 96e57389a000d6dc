"""The text of the screen's lines, and the cutting of replies: pure functions and values."""
