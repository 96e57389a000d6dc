"""Sizes, times and foreign text as people can read them."""

from localspec.terminal_text import line_for_terminal


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
