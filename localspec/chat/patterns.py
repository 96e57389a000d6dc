"""Finding texts in a stream: the first complete one, and how much of the end could become one."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    start: int
    end: int
    pattern: str


class Patterns:
    """Texts to look for; empty ones are ignored."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(dict.fromkeys(p for p in patterns if p))
        self._first = frozenset(p[0] for p in self._patterns)
        self._longest = max(map(len, self._patterns), default=0)

    def find(self, text: str) -> Match | None:
        """The occurrence that is complete first; of those that end together, the longest."""
        best: Match | None = None
        for pattern in self._patterns:
            start = text.find(pattern)
            if start < 0:
                continue
            end = start + len(pattern)
            if best is None or (end, start) < (best.end, best.start):
                best = Match(start, end, pattern)
        return best

    def unfinished(self, text: str) -> int:
        """Length of the longest end of the text with which a pattern could begin; 0 when none could."""
        length = len(text)
        for start in range(max(0, length - self._longest + 1), length):
            if text[start] in self._first:
                tail = text[start:]
                if any(p.startswith(tail) for p in self._patterns):
                    return length - start
        return 0
