"""Drafts made and fitted on this machine: what the target says, trimmed vocabularies, training, judgement."""
