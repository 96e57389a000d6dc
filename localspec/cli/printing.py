"""Print for a person: on a terminal nothing that was printed steers it, a file or a pipe gets every character."""

import sys
from typing import TextIO

from localspec.terminal_text import for_terminal


def say(text: str, *, end: str = "\n", to: TextIO | None = None) -> None:
    """Print a text that may hold what a model or a file brought; to stdout where nothing else is named."""
    stream = sys.stdout if to is None else to
    shown = for_terminal(text) if stream is not None and stream.isatty() else text
    print(shown, end=end, file=stream, flush=True)


def note(text: str) -> None:
    """One sentence on stderr that is neither the result nor an error."""
    say(f"note: {text}", to=sys.stderr)
