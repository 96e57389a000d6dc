"""Where the last three tokens of a text were seen before: in the text itself, and in a fixed collection."""

from collections.abc import Sequence

import numpy as np

GRAM = 3  # tokens that must match for a place to be considered
BITS = 21  # a token id in a key: vocabularies have up to 2 million entries
NOWHERE = -1
START = 1024


def key_of(a: int, b: int, c: int) -> int:
    return a << 2 * BITS | b << BITS | c


def keys_of(tokens: np.ndarray) -> np.ndarray:
    """The keys of every three tokens in a row, int64 [n - 2]."""
    wide = tokens.astype(np.int64)
    return wide[:-2] << 2 * BITS | wide[1:-1] << BITS | wide[2:]


class GrowingIndex:
    """A text that grows and is cut, with the places of each three tokens; O(1) for every token."""

    def __init__(self) -> None:
        self.tokens = np.zeros(START, dtype=np.int32)  # the first `length` are the text
        self.length = 0
        self._before: list[
            int
        ] = []  # for each position, the place before it that ends in the same three tokens
        self._latest: dict[int, int] = {}  # by key

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens: a few at a time one by one, many at once by sorting."""
        begin, end = self.length, self.length + len(tokens)
        self._reserve(end)
        self.tokens[begin:end] = tokens
        self.length = end
        first = min(GRAM - 1, end)
        self._before += [NOWHERE] * (first - len(self._before))
        first = len(self._before)
        if first < end:
            keys = keys_of(self.tokens[first - GRAM + 1 : end])
            if len(keys) > 64:
                self._link_many(keys, first)
            else:
                self._link(keys.tolist(), first)

    def cut(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        if length >= self.length:
            return
        begin = max(length, GRAM - 1)
        if begin < self.length:
            keys = keys_of(self.tokens[begin - GRAM + 1 : self.length]).tolist()
            for position in range(self.length - 1, begin - 1, -1):
                before = self._before[position]
                if before == NOWHERE:
                    del self._latest[keys[position - begin]]
                else:
                    self._latest[keys[position - begin]] = before
        del self._before[length:]
        self.length = length

    def places(self, key: int, most: int) -> list[int]:
        """The latest positions whose token ends these three; newest first."""
        found: list[int] = []
        place = self._latest.get(key, NOWHERE)
        while place != NOWHERE and len(found) < most:
            found.append(place)
            place = self._before[place]
        return found

    def _link(self, keys: list[int], first: int) -> None:
        for position, key in enumerate(keys, start=first):
            self._before.append(self._latest.get(key, NOWHERE))
            self._latest[key] = position

    def _link_many(self, keys: np.ndarray, first: int) -> None:
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
        before = np.empty(len(keys), dtype=np.int64)
        before[order[1:]] = order[:-1] + first
        known = [self._latest.get(key, NOWHERE) for key in ordered[starts].tolist()]
        before[order[starts]] = known
        self._before += before.tolist()
        ends = np.concatenate((starts[1:], [True]))
        self._latest.update(zip(ordered[ends].tolist(), (order[ends] + first).tolist(), strict=True))

    def _reserve(self, length: int) -> None:
        if length > len(self.tokens):
            larger = np.zeros(max(length, 2 * len(self.tokens)), dtype=np.int32)
            larger[: self.length] = self.tokens[: self.length]
            self.tokens = larger


class FixedIndex:
    """A collection of texts that does not change: sorted once, searched by bisection."""

    def __init__(self, tokens: np.ndarray) -> None:
        """`tokens`: int32 [n], texts separated by -1."""
        self.tokens = tokens
        self.length = len(tokens)
        keys = keys_of(tokens) if self.length >= GRAM else np.empty(0, dtype=np.int64)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def places(self, key: int, most: int) -> list[int]:
        """The latest positions whose token ends these three; newest first."""
        begin, end = np.searchsorted(self._keys, [key, key + 1])
        found = self._order[max(begin, end - most) : end][::-1] + GRAM - 1
        return list(found.tolist())
