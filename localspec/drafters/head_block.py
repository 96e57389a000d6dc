"""Heads that guess a whole block of tokens in one run: DFlash, DSpark.

Such a head's cache holds the target's hidden rows as they are, one for each position of the text. A draft is one run
over the newest token and places for those to come, whatever their number.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from localspec.drafters.drawing import Rows
from localspec.drafters.head import Head
from localspec.drafters.head_text import HeadText
from localspec.passes import Row


class Places(Protocol):
    """What may stand at each place of a block."""

    def row(self, place: int, before: int | None) -> Row:
        """Of a place from 0; `before`: the token that was drawn at the place before."""


class BlockHead(Head, Protocol):
    """A head whose rows are hidden rows of its target."""

    most_guesses: int  # tokens of a block

    def read(self, hidden: np.ndarray, position: int) -> None:
        """Append the target's hidden rows of these positions, float32 [rows, columns]."""

    def guess(self, token: int, count: int, position: int) -> Places:
        """Of the `count` tokens after this one, valid until the next call."""


class Block:
    """Guesses of such a head: one run, whatever the depth."""

    keeps = True

    def __init__(self, head: BlockHead) -> None:
        self.head = head

    def steps(self, depth: int) -> int:
        return min(depth, 1)

    def rehearse(self, batches: Sequence[Sequence[int]], position: int) -> None:
        for batch in batches:
            self.cut(position)
            self.head.guess(batch[-1], self.head.most_guesses, position)

    def read(self, known: HeadText, end: int) -> None:
        if end > known.held:
            self.head.read(known.hidden(end), known.held)
            known.hold(end)

    def rows(self, known: HeadText, limit: int) -> Rows:
        self.read(known, known.end)
        count = min(limit, self.head.most_guesses)
        places, token = self.head.guess(known.text[known.end], count, known.end), None
        for place in range(count):
            token = yield places.row(place, token)

    def cut(self, position: int) -> None:
        self.head.cut(position)
