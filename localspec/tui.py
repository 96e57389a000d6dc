"""Checkout only: makes localspec.tui resolve to the top-level tui/ folder. Wheels carry the folder instead."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent.parent / "tui")]
