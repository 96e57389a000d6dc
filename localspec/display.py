"""Text for people: sizes, times, tables, wrapped lines, and all printing.

Control characters are removed, except from stdout if it is a file or a pipe.
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
# Characters that change the direction of text, without U+061C, U+200E and U+200F, which Arabic and Hebrew need.
_REORDERING: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_BREAKING: Final = (0x2028, 0x2029)
_UNPRINTABLE: Final = range(0xD800, 0xE000)  # surrogates, which UTF-8 cannot encode
_CONTROLS: Final = (*_STEERING, *_REORDERING, *_BREAKING, *_UNPRINTABLE)
_IN_A_LINE: Final = dict.fromkeys(_CONTROLS, "\ufffd")
_IN_A_TEXT: Final = {**_IN_A_LINE, ord("\r"): " ", ord("\n"): "\n", ord("\t"): "\t"}
_NOTHING: Final = dict.fromkeys(_CONTROLS)


def for_terminal(text: str) -> str:
    """Replace control characters by U+FFFD, because they steer a terminal. Newline and tab stay, CR becomes a space."""
    return text.translate(_IN_A_TEXT)


def line_for_terminal(text: str) -> str:
    return text.translate(_IN_A_LINE)


def without_controls(text: str) -> str:
    """Remove control characters, so that each character takes a cell of the terminal."""
    return text if text.isprintable() else text.translate(_NOTHING)


def size_text(count: float) -> str:
    """Return a number of bytes in decimal units, as the Hub and disk makers do: 5.7 GB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale * 0.9995:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def duration_text(seconds: float) -> str:
    """Return a time as 45 s, 12 min or 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: 1 token, 1,200 tokens; `many`: an irregular plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def bar_text(share: float, cells: int) -> str:
    filled = int(share * cells)
    return f"{'█' * filled}{'░' * (cells - filled)} {share:4.0%}"


def printable(text: str, limit: int = 100) -> str:
    """Return the first `limit` characters of a foreign text, in one line without control characters."""
    shown = line_for_terminal(text[:limit])
    return shown if len(text) <= limit else shown + "..."


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return rows as lines of aligned columns; the first `left` columns are flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<"] * left + [">"] * (len(widths) - left)
    padded = (zip(row, sides, widths, strict=True) for row in rows)
    cells = [[f"{cell:{side}{width}}" for cell, side, width in row] for row in padded]
    return "\n".join("  ".join(row).rstrip() for row in cells)


# Chinese, Japanese and Korean characters: a line may break before each of them.
_WIDE: Final = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60"
_WORD: Final = f"[^ \t\n{_WIDE}]"
_PARTS: Final = f"\n|[ \t]+|[{_WIDE}]|{_WORD}+"  # not compiled here, because this takes 5 ms
_COMMAND: Final = re.compile(r"    \S")  # an indented command, never wrapped, so that it can be copied
_GAP: Final = re.compile(r"(?<=\S) {2,}(?=\S)")  # the blanks between two columns of a line
_FENCE: Final = "```"


@dataclass(slots=True)
class Cursor:
    column: int = 0
    indent: int = 0  # blank columns before each continuation row
    word: str = ""  # the unfinished word at the end of the row
    is_code: bool = False  # whether the text is between the fences of a code block


def wrapped(text: str, width: int, row: Cursor, *, whole: bool = True) -> str:
    """Return the text with a new row before each word that would cross the edge; update `row`.

    `whole`: whether the text is complete. If not, it is a piece, and may continue the last word of the piece before.
    """
    parts = []
    for line in text.splitlines(keepends=True):
        if whole and _COMMAND.match(line):
            parts.append(line)
            continue
        if row.column == 0:
            row.indent = _indent(line, width, whole=whole)
        parts += [_placed(part, width, row) for part in re.findall(_PARTS, line)]
    placed = "".join(parts)
    return re.sub(" +\n", "\n", placed) if whole else placed


def _indent(line: str, width: int, *, whole: bool) -> int:
    begins = len(line) - len(line.lstrip(" "))
    gaps = [gap.end() for gap in _GAP.finditer(line)] if whole else []
    if gaps and gaps[-1] <= width * 0.6:
        return gaps[-1]
    return (begins if begins <= width // 2 else 0) + 2 * bool(gaps)


def _placed(part: str, width: int, row: Cursor) -> str:
    """Return a word, blanks or a newline. A word that would cross the edge begins a new row. Update `row`."""
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


JSON_VERSION: Final = 1  # the version of --json output; raise it if a name is removed or changes its meaning
_CLEAR_ROW = "\r\x1b[K"
_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"


class OutputFailed(LocalspecError): ...


_row = Cursor()  # the cursor's position on the terminal, which stdout and stderr share


def say(text: str, *, end: str = "\n", to: TextIO | None = None, wrap: bool = True) -> None:
    """Print a text, wrapped between words on a terminal; with end="" the next text continues the row.

    The default stream is stdout. Raises OutputFailed, BrokenPipeError.
    """
    global _row
    stream = sys.stdout if to is None else to
    if stream is not sys.stdout or on_terminal(stream):
        text = for_terminal(text)
    _write((_in_rows(text, stream, whole=bool(end)) if wrap else text) + end, stream)
    if end:
        _row = Cursor()  # new row: after a question, whose `end` is " ", the user's Enter ends the row


def say_json(found: Mapping[str, object], **form: Any) -> None:  # noqa: ANN401
    """Print one JSON object with the version of its format; `form`: keyword arguments of json.dumps."""
    say(json.dumps({"version": JSON_VERSION, **found}, **form), wrap=False)


def _in_rows(text: str, stream: TextIO | None, *, whole: bool) -> str:
    wraps = on_terminal(stream) if whole else obeys_sequences(stream)
    return wrapped(text, columns(stream) - 1, _row, whole=whole) if wraps else text


def columns(stream: TextIO | None) -> int:
    """Return the columns of a stream's terminal: the variable COLUMNS, else the terminal's width, else 80."""
    with suppress(AttributeError, OSError, ValueError):  # the stream is closed or is not a file
        if stream and not os.environ.get("COLUMNS"):
            return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


_quiet = False


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Print no notices and no progress in this context if `quiet`."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def print_line(text: str) -> None:
    if not _quiet:
        say(text, to=sys.stderr)


def print_notice(text: str) -> None:
    print_line(f"notice: {text}")


def tell(error: LocalspecError) -> None:
    say(f"error: {error}", to=sys.stderr)
    if error.hint:
        say(f"hint: {error.hint}", to=sys.stderr)


def say_dimmed(text: str) -> None:
    """Print a model's reasoning on stderr, dim unless NO_COLOR is set. Print nothing if stderr is no terminal."""
    if _quiet or not on_terminal(sys.stderr):
        return
    plain = bool(os.environ.get("NO_COLOR")) or not obeys_sequences(sys.stderr)
    shown = _in_rows(for_terminal(text), sys.stderr, whole=False)
    _write(shown if plain else f"{_DIM}{shown}{_NORMAL}", sys.stderr)


class DrawnLine(AbstractContextManager["DrawnLine"]):
    """One line on a terminal; each drawing replaces its text, and the end of the context clears it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False
        self._step: object = None  # the step printed last

    def draw(self, text: str) -> bool:
        """Draw a text, unless quiet. Return False where a line cannot be redrawn."""
        if _quiet:
            return True
        if not obeys_sequences(self._stream):
            return False
        _write(_CLEAR_ROW + line_for_terminal(text)[: columns(self._stream) - 1], self._stream)
        self._drawn = True
        return True

    def tell(self, text: str, step: object, otherwise: str = "") -> None:
        """Draw a text. Without a terminal, print `otherwise` (by default the text) once for each step."""
        if not self.draw(text) and step != self._step:
            self._step = step
            print_line(otherwise or text)

    def clear(self) -> None:
        if self._drawn:
            _write(_CLEAR_ROW, self._stream)
            self._drawn = False

    def __exit__(self, *_: object) -> None:
        self.clear()


class LibraryNotices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, OutputFailed):  # a notice that cannot be printed must not end the command
            print_notice(record.getMessage())


def on_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def obeys_sequences(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal that can redraw a line; with TERM=dumb it cannot."""
    return on_terminal(stream) and os.environ.get("TERM") != "dumb"


def _write(text: str, stream: TextIO | None) -> None:
    try:
        print(text, end="", file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"the output cannot be written: {error.strerror or error}"
        raise OutputFailed(what, hint="free disk space, or use another disk") from error
