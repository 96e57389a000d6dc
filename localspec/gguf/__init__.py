"""Headers of GGUF files: read, judged and written."""
