"""One reply: a session turns a prompt into events."""
