"""The one place that prints: what a model, a file or a server said never steers the terminal.

A file or a pipe behind stdout gets every character of a reply; stderr is made safe wherever it leads, because
what lands in a log is read on a terminal later.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, TextIO

from localspec.display import for_terminal, line_for_terminal
from localspec.errors import LocalspecError

JSON_VERSION: Final = 1  # of every --json: it grows where a name goes or changes its meaning
_TO_THE_START = "\r\x1b[K"  # of an emptied line
_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"


class OutputFailed(LocalspecError):
    """What was to be printed could not be written."""


def say(text: str, *, end: str = "\n", to: TextIO | None = None) -> None:
    """Print a text, to stdout where nothing else is named. Raises OutputFailed, BrokenPipeError."""
    stream = sys.stdout if to is None else to
    whole = stream is sys.stdout and not on_terminal(stream)
    _write((text if whole else for_terminal(text)) + end, stream)


def say_json(found: Mapping[str, object], **form: Any) -> None:  # noqa: ANN401  json's own
    """Print one JSON object with the version of what its names mean; `form`: arguments of json.dumps."""
    say(json.dumps({"version": JSON_VERSION, **found}, **form))


_quiet = False


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """No notes and no progress meanwhile, where `quiet` says so: results and errors only."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def aside(text: str) -> None:
    """A line on stderr that is neither the result nor an error."""
    if not _quiet:
        say(text, to=sys.stderr)


def note(text: str) -> None:
    """One sentence that the user should know."""
    aside(f"note: {text}")


def say_dimmed(text: str) -> None:
    """Reasoning, on a terminal's stderr only; without colours where NO_COLOR is set."""
    if _quiet or not on_terminal(sys.stderr):
        return
    plain = bool(os.environ.get("NO_COLOR")) or not obeys_sequences(sys.stderr)
    _write(for_terminal(text) if plain else f"{_DIM}{for_terminal(text)}{_NORMAL}", sys.stderr)


class DrawnLine(AbstractContextManager["DrawnLine"]):
    """One line on a terminal that each drawing replaces; nothing where there is no terminal. Leaving it clears it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False
        self._step: object = None  # that was told last

    def draw(self, text: str) -> bool:
        """False where there is no terminal to draw on; True in silence, where nothing is to be said instead."""
        if _quiet:
            return True
        if not obeys_sequences(self._stream):
            return False
        width = shutil.get_terminal_size().columns - 1
        _write(_TO_THE_START + line_for_terminal(text)[:width], self._stream)
        self._drawn = True
        return True

    def tell(self, text: str, step: object, otherwise: str = "") -> None:
        """Draw a text; without a terminal say it, or what is shorter, once for each step."""
        if not self.draw(text) and step != self._step:
            self._step = step
            aside(otherwise or text)

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._drawn:
            _write(_TO_THE_START, self._stream)
            self._drawn = False

    def __exit__(self, *_: object) -> None:
        self.clear()


class NotesOfLibraries(logging.Handler):
    """What llama.cpp and others log reads like any other note."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, OutputFailed):  # a note that nobody can read ends nothing
            note(record.getMessage())


def on_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def obeys_sequences(stream: TextIO | None) -> bool:
    """Whether a terminal is there that a line can be drawn over on; one that says TERM=dumb cannot."""
    return on_terminal(stream) and os.environ.get("TERM") != "dumb"


def _write(text: str, stream: TextIO | None) -> None:
    try:
        print(text, end="", file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(
            f"the output cannot be written: {error.strerror or error}", hint="make room, or send it elsewhere"
        ) from error
