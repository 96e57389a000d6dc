"""The state of the chat, without Textual: the engine, the reply, the conversation, files."""
