"""The files of a pair: its name, the Hub, this machine."""
