"""Fetches files from the Hugging Face Hub."""
