"""Small pictures made of block characters; every scale is absolute, so equal values always look equal."""

from collections.abc import Sequence
from typing import Final

_EIGHTHS_UP: Final = "▁▂▃▄▅▆▇█"
_EIGHTHS_RIGHT: Final = " ▏▎▍▌▋▊▉█"


def bars(values: Sequence[float], width: int) -> str:
    """The last `width` values, each 0..1, as columns; the newest is on the right."""
    shown = list(values)[-width:] if width > 0 else []
    return "".join(_EIGHTHS_UP[min(7, max(0, int(value * 8)))] for value in shown).rjust(width)


def gauge(value: float, width: int) -> str:
    """A value 0..1 as a horizontal bar of `width` cells."""
    eighths = round(min(1.0, max(0.0, value)) * width * 8)
    full, part = divmod(eighths, 8)
    bar = "█" * full + (_EIGHTHS_RIGHT[part] if part else "")
    return bar.ljust(width)


def shares(values: Sequence[float], width: int) -> tuple[int, ...]:
    """Cells for each value so that they fill `width` in proportion; the largest takes the rounding."""
    total = sum(values)
    if total <= 0:
        return (0,) * len(values)
    cells = [int(width * value / total) for value in values]
    cells[max(range(len(values)), key=lambda i: values[i])] += width - sum(cells)
    return tuple(cells)


def time_split(seconds: Sequence[float], width: int) -> list[tuple[str, str]]:
    """Draft, verify and other time side by side, each with its style."""
    marks, styles = "▒█░", ("$warning", "$primary", "$secondary")
    return [(m * cells, s) for m, cells, s in zip(marks, shares(seconds, width), styles, strict=True)]
