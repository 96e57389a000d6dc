"""Text for people: safe foreign text, sizes, times, tables, and the one place that prints.

A file or a pipe behind stdout gets every character of a reply; stderr is always made safe, because
a log is read on a terminal later.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, TextIO

from localspec.errors import LocalspecError

_STEERING: Final = (*range(0x20), *range(0x7F, 0xA0))
# Embeddings, overrides and isolates; the marks U+061C, U+200E and U+200F belong to ordinary Arabic and Hebrew.
_REORDERING: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_BREAKING: Final = (0x2028, 0x2029)
_UNPRINTABLE: Final = range(0xD800, 0xE000)  # surrogates
_CONTROLS: Final = (*_STEERING, *_REORDERING, *_BREAKING, *_UNPRINTABLE)
_IN_A_LINE: Final = dict.fromkeys(_CONTROLS, "\ufffd")
_IN_A_TEXT: Final = {code: sign for code, sign in _IN_A_LINE.items() if chr(code) not in "\n\t"} | {
    ord("\r"): " "
}

_NOTHING: Final = dict.fromkeys(_CONTROLS)


def for_terminal(text: str) -> str:
    """The text with U+FFFD for every control character but newline and tab, one for one; blank for a return.

    Raw, they could set the clipboard, the colours or the title, or draw over the screen.
    """
    return text.translate(_IN_A_TEXT)


def line_for_terminal(text: str) -> str:
    """The text in one line, with U+FFFD for every control character, newline and tab too."""
    return text.translate(_IN_A_LINE)


def without_controls(text: str) -> str:
    """The text without control characters, equally wide: they take no cell of a terminal."""
    return text if text.isprintable() else text.translate(_NOTHING)


def size_text(count: float) -> str:
    """Bytes in decimal units, as the Hub and disks count them: 5.7 GB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale * 0.9995:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def duration_text(seconds: float) -> str:
    """45 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def bar_text(share: float, cells: int) -> str:
    """A bar with this share filled, and the share in percent."""
    filled = int(share * cells)
    return f"{'█' * filled}{'░' * (cells - filled)} {share:4.0%}"


def printable(text: str, limit: int = 100) -> str:
    """Text out of a file, safe for a terminal: no control characters, and not too long."""
    shown = line_for_terminal(text[:limit])
    return shown if len(text) <= limit else shown + "..."


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Lines of columns: the first `left` of them to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<"] * left + [">"] * (len(widths) - left)
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


JSON_VERSION: Final = 1  # of every --json: it grows where a name goes or changes its meaning
_TO_THE_START = "\r\x1b[K"  # of an emptied line
_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"


class OutputFailed(LocalspecError):
    """The output could not be written."""


def say(text: str, *, end: str = "\n", to: TextIO | None = None) -> None:
    """Print a text, to stdout where nothing else is named. Raises OutputFailed, BrokenPipeError."""
    stream = sys.stdout if to is None else to
    whole = stream is sys.stdout and not on_terminal(stream)
    _write((text if whole else for_terminal(text)) + end, stream)


def say_json(found: Mapping[str, object], **form: Any) -> None:  # noqa: ANN401  json's own
    """Print one JSON object with the version of its names; `form`: arguments of json.dumps."""
    say(json.dumps({"version": JSON_VERSION, **found}, **form))


_quiet = False


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Inside it, `quiet` prints no notes and no progress."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def aside(text: str) -> None:
    """A note on stderr."""
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
    """One line on a terminal that each drawing replaces, and that is cleared at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False
        self._step: object = None  # the step printed last

    def draw(self, text: str) -> bool:
        """False without a terminal; True if quiet."""
        if _quiet:
            return True
        if not obeys_sequences(self._stream):
            return False
        width = shutil.get_terminal_size().columns - 1
        _write(_TO_THE_START + line_for_terminal(text)[:width], self._stream)
        self._drawn = True
        return True

    def tell(self, text: str, step: object, otherwise: str = "") -> None:
        """Draw a text; without a terminal print it, or its short form, once for each step."""
        if not self.draw(text) and step != self._step:
            self._step = step
            aside(otherwise or text)

    def clear(self) -> None:
        """Clear the line, for other output."""
        if self._drawn:
            _write(_TO_THE_START, self._stream)
            self._drawn = False

    def __exit__(self, *_: object) -> None:
        self.clear()


class NotesOfLibraries(logging.Handler):
    """Shows log lines of llama.cpp and others as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, OutputFailed):  # a note that nobody can read ends nothing
            note(record.getMessage())


def on_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def obeys_sequences(stream: TextIO | None) -> bool:
    """Whether the terminal can draw over a line; TERM=dumb cannot."""
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
