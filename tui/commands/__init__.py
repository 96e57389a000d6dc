"""What a person can ask for: the table of commands, and what each does to the chat."""
