"""The HTTP endpoint for editors, chats and agents, in front of the engine process."""
