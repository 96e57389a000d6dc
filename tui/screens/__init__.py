"""What fills the terminal: the chat, and the dialogs over it."""
