"""The loop of speculative decoding and the rules that judge what was drafted: the papers' part."""
