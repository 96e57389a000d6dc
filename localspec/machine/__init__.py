"""The installed llama.cpp, and the devices and memory of this machine."""
