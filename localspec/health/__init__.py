"""Which llama.cpp is installed, whether it works on this machine, and which devices and memory it has here."""
