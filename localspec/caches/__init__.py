"""Prompt caches on disk, which outlive the process."""
