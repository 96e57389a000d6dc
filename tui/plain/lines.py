"""Lines in and lines out: replies on stdout, everything else on stderr."""

import sys
from contextlib import suppress
from typing import Final

from localspec.terminal_text import for_terminal

PROMPT: Final = "> "
QUOTES: Final = '"""'  # around a message of several lines, as in `ollama run`


def read_message() -> str | None:
    """What the person says next; None at the end of the input."""
    line = _read(PROMPT)
    if line is None or not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        if (line := _read("")) is None:
            break
        lines.append(line)
    return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")


def say(text: str) -> None:
    """A part of a reply."""
    sys.stdout.write(for_terminal(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def note(text: str) -> None:
    """A line of the program itself."""
    sys.stderr.write(f"{for_terminal(text)}\n")
    sys.stderr.flush()


def _read(prompt: str) -> str | None:
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401 - lets `input` edit and recall
    try:
        return input(prompt)
    except EOFError:
        note("")
        return None
