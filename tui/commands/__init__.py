"""The table of commands, and the work of each."""
