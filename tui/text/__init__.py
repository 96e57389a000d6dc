"""What the lines of the screen say and how replies are cut: pure functions and values."""
