"""Text for people: safe foreign text, sizes, times, tables, and the one place that prints.

A file or a pipe behind stdout gets every character of a reply; stderr is always made safe, because
a log is read on a terminal later.
"""

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
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


def counted(count: int, one: str, many: str = "") -> str:
    """1 token, 1,200 tokens; `many` where an s at the end is not enough."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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


_WIDE: Final = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60"  # each of these letters is a word
_WORD: Final = f"[^ \t\n{_WIDE}]"
_PARTS: Final = re.compile(f"\n|[ \t]+|[{_WIDE}]|{_WORD}+")
_UNITS: Final = r"(?:[kMGT]?B|ms|s|min|h|tokens?|tokens/s)"  # stay in the row of their number
_WHOLE_PARTS: Final = re.compile(rf"{_WORD}*\d {_UNITS}\b{_WORD}*|{_PARTS.pattern}")
_COMMAND: Final = re.compile(r"    \S")  # the beginning of a line to copy, which is never wrapped
_GAP: Final = re.compile(r"(?<=\S) {2,}(?=\S)")  # between columns
_FENCE: Final = "```"


@dataclass(slots=True)
class Row:
    """The last row of a terminal, up to the cursor."""

    column: int = 0
    indent: int = 0  # of the rows that continue its line
    word: str = ""  # the beginning of a word at its end
    is_code: bool = False  # between the fences of a reply


def wrapped(text: str, width: int, row: Row, *, whole: bool = True) -> str:
    """The text with a new row before each word that would cross the edge; `row` remembers where it ends.

    A `whole` text may have columns. Else the text comes in pieces, and a word that has begun is erased and moves.
    """
    parts = []
    for line in text.splitlines(keepends=True):
        if whole and _COMMAND.match(line):
            parts.append(line)
            continue
        if row.column == 0:
            row.indent = _indent(line, width, whole=whole)
        parts += [_placed(part, width, row) for part in (_WHOLE_PARTS if whole else _PARTS).findall(line)]
    placed = "".join(parts)
    return re.sub(" +\n", "\n", placed) if whole else placed


def _indent(line: str, width: int, *, whole: bool) -> int:
    """Where the rows that continue a line begin: below its last column, else two cells right of its first."""
    begins = len(line) - len(line.lstrip(" "))
    gaps = [gap.end() for gap in _GAP.finditer(line)] if whole else []
    if gaps and gaps[-1] <= width * 0.6:
        return gaps[-1]
    return (begins if begins <= width // 2 else 0) + 2 * bool(gaps)


def _placed(part: str, width: int, row: Row) -> str:
    """A word, blanks or a newline with what stands before it in this row."""
    if part == "\n":
        row.column, row.indent, row.word = 0, 0, ""
        return part
    if part[0] in " \t":
        cells = len(("." * row.column + part).expandtabs()) - row.column
        row.word, row.column = "", row.column + cells
        return part if row.is_code or row.column < width else ""
    begun = "" if re.match(f"[{_WIDE}]", part) else row.word
    cells, before = _cells(part), row.column - _cells(begun)
    row.word = begun + part
    if before == row.indent and row.word.startswith(_FENCE) and not begun.startswith(_FENCE):
        row.is_code = not row.is_code
    if row.is_code or row.column + cells <= width:
        row.column += cells
        return part
    if row.indent + _cells(row.word) > width:
        row.indent = min(row.indent, 2)
    if before <= row.indent:
        row.column += cells
        return part
    row.column = row.indent + _cells(row.word)
    erased = f"\x1b[{_cells(begun)}D\x1b[K" if begun else ""
    return f"{erased}\n{' ' * row.indent}{row.word}"


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


JSON_VERSION: Final = 1  # of every --json: it grows where a name goes or changes its meaning
_TO_THE_START = "\r\x1b[K"  # of an emptied line
_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"


class OutputFailed(LocalspecError):
    """The output could not be written."""


_row = Row()  # of the one terminal behind stdout and stderr


def say(text: str, *, end: str = "\n", to: TextIO | None = None, wrap: bool = True) -> None:
    """Print a text, on a terminal with whole words in each row; with end="" the next text continues it.

    It goes to stdout where nothing else is named. Raises OutputFailed, BrokenPipeError.
    """
    global _row
    stream = sys.stdout if to is None else to
    if stream is not sys.stdout or on_terminal(stream):
        text = for_terminal(text)
    _write((_in_rows(text, stream, whole=bool(end)) if wrap else text) + end, stream)
    if end:
        _row = Row()  # after a blank the user's Enter follows


def say_json(found: Mapping[str, object], **form: Any) -> None:  # noqa: ANN401  json's own
    """Print one JSON object with the version of its names; `form`: arguments of json.dumps."""
    say(json.dumps({"version": JSON_VERSION, **found}, **form), wrap=False)


def _in_rows(text: str, stream: TextIO | None, *, whole: bool) -> str:
    """The text in rows if a terminal takes it."""
    wraps = on_terminal(stream) if whole else obeys_sequences(stream)
    return wrapped(text, columns(stream) - 1, _row, whole=whole) if wraps else text


def columns(stream: TextIO | None) -> int:
    """The width of the terminal behind a stream: COLUMNS, else its own, else 80."""
    with suppress(AttributeError, OSError, ValueError):  # no file, or closed
        if (
            stream
            and not os.environ.get("COLUMNS")
            and (own := os.get_terminal_size(stream.fileno()).columns)
        ):
            return own
    return shutil.get_terminal_size().columns


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


def tell(error: LocalspecError) -> None:
    """What happened and a hint, on stderr."""
    say(f"error: {error}", to=sys.stderr)
    if error.hint:
        say(f"hint: {error.hint}", to=sys.stderr)


def say_dimmed(text: str) -> None:
    """Reasoning, on a terminal's stderr only; without colours where NO_COLOR is set."""
    if _quiet or not on_terminal(sys.stderr):
        return
    plain = bool(os.environ.get("NO_COLOR")) or not obeys_sequences(sys.stderr)
    shown = _in_rows(for_terminal(text), sys.stderr, whole=False)
    _write(shown if plain else f"{_DIM}{shown}{_NORMAL}", sys.stderr)


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
        _write(_TO_THE_START + line_for_terminal(text)[: columns(self._stream) - 1], self._stream)
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
