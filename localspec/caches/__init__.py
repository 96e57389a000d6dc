"""Caches of earlier texts on disk, which outlive the process."""
