"""Lines in and lines out: replies on stdout, everything else on stderr."""

import sys
from contextlib import suppress
from typing import Final, TextIO

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
    _write(for_terminal(text) if sys.stdout is not None and sys.stdout.isatty() else text, sys.stdout)


def note(text: str, end: str = "\n") -> None:
    """A line of the program itself."""
    _write(for_terminal(text) + end, sys.stderr)


def _write(text: str, stream: TextIO | None) -> None:
    if stream is not None:  # the shell may have closed it
        stream.write(text)
        stream.flush()


def _read(prompt: str) -> str | None:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if all(stream is not None and stream.isatty() for stream in streams):
        with suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401 - lets `input` edit and recall
        try:
            return input(prompt)
        except EOFError:
            note("")
            return None
    if sys.stdin is not None and sys.stdin.isatty():
        note(prompt, end="")
    line = sys.stdin.readline() if sys.stdin is not None else ""
    return line.rstrip("\n") if line else None
