"""Foreign text, sizes, times and tables on a terminal: characters that would steer it become a sign."""

from collections.abc import Sequence
from typing import Final

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

    Raw, they could set the clipboard, the colours or the title, or draw over what is on the screen.
    """
    return text.translate(_IN_A_TEXT)


def line_for_terminal(text: str) -> str:
    """The text with U+FFFD for every control character, newline and tab included: it stays one line."""
    return text.translate(_IN_A_LINE)


def without_controls(text: str) -> str:
    """The text without control characters; as they take no cell of a terminal, it is as wide as before."""
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
