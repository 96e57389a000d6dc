"""What passes cost on this machine."""
