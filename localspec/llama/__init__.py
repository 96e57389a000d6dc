"""The C boundary: the only package that imports llama_cpp."""
