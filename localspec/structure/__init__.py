"""Replies that match a JSON schema, a regular expression or a grammar, and tool calls, through llguidance."""
