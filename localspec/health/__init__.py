"""Which llama.cpp is installed, and whether it works on this machine: found out before a process loads it."""
