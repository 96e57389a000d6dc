"""What the chat knows and keeps, without Textual: the engine, the reply, the conversation, files."""
