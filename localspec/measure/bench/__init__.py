"""Pairs measured on prompts: plain decoding against drafting."""
