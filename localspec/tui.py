"""Make localspec.tui mean the top-level folder tui/ in a checkout. In a wheel, that folder replaces this file."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent.parent / "tui")]
