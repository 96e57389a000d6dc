"""The boxes over the chat, one file each."""
