"""Make localspec.tui resolve to the top-level tui/ folder in a checkout. A wheel has that folder, not this file."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent.parent / "tui")]
