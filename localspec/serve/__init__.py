"""The HTTP endpoint: what editors, chats and agents speak, in front of the engine process."""
