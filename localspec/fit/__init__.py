"""Drafts made on this machine: the target's answers, trimmed vocabularies, training, judgement."""
