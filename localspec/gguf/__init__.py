"""Read, check and write the headers of GGUF files."""
