"""The C boundary: the only room that imports llama_cpp."""
