"""From files on this machine to a loaded pair."""
