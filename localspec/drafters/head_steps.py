"""Heads that guess a token in a run: EAGLE-3 (Li et al. 2025) and multi-token prediction.

Row p of the head's cache is made of the target's feature at position p and of the text's token p + 1. What the target
has decoded gives features, so after a pass the rows of all kept tokens but the last can be read, and the newest token
completes the last one: one call of the head reads what is missing and guesses the first token. Each further guess is
read with the feature that the head itself computed, and forgotten after the cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localspec.drafters.drawing import Rows
from localspec.drafters.head import Head
from localspec.drafters.head_text import HeadText


class StepHead(Head, Protocol):
    """A head whose rows are a token and a feature each."""

    @property
    def columns(self) -> int:
        """Of a feature."""

    def features(self, hidden: np.ndarray) -> np.ndarray:
        """What it reads of hidden rows of the target, a copy: float32 [rows, columns]."""

    def choose(self, layer: int, position: int) -> None:
        """Go on with this one of several prediction layers, and without the rows from `position` on."""

    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None:
        """Append rows to the cache, for no logits."""

    def predict(
        self, tokens: Sequence[int], features: np.ndarray, position: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append at most `most_rows` rows; the logits after the last, valid until the next call, and its feature."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a head keeps its rows."""

    shift: int  # row p lies at position p + shift
    opens: bool  # whether a row of zeros stands before the first, for the text's first token
    keeps: bool = (
        True  # False: the head looks into its target's cache and has none; all its rows lie at one position
    )


EAGLE3 = Layout(shift=0, opens=False)
MTP = Layout(shift=1, opens=True)
ASSISTANT = Layout(shift=1, opens=False, keeps=False)


class Steps:
    """Guesses of such a head, one run for each token."""

    def __init__(self, head: StepHead, layout: Layout) -> None:
        self.head = head
        self.keeps = layout.keeps
        self._layout = layout

    def steps(self, depth: int) -> int:
        return depth

    def rehearse(self, batches: Sequence[Sequence[int]], position: int) -> None:
        position += self._layout.shift
        for batch in batches:
            self.head.predict(batch, np.zeros((len(batch), self.head.columns), np.float32), position)
            position += len(batch) if self._layout.keeps else 0

    def read(self, known: HeadText, end: int) -> None:
        if end > known.held:
            if self._layout.keeps:
                self.head.read(*self._missing(known, end))
            known.hold(end)

    def rows(self, known: HeadText, limit: int) -> Rows:
        most = self.head.most_rows - 1 if self._layout.keeps else 1
        self.read(known, known.end - min(known.unread, most))
        row, feature = self.head.predict(*self._missing(known, known.end))
        known.hold(known.end)
        position = known.end - 1 + self._layout.shift
        while True:
            token = yield row
            position += self._layout.keeps
            row, feature = self.head.predict([token], feature[None], position)

    def cut(self, position: int) -> None:
        if self._layout.keeps:
            self.head.cut(position + self._layout.shift if position else 0)

    def _missing(self, known: HeadText, end: int) -> tuple[list[int], np.ndarray, int]:
        """Tokens, features and the first position of the rows that are missing before `end`."""
        tokens, features = known.text[known.held + 1 : end + 1], self.head.features(known.hidden(end))
        position = known.held + self._layout.shift
        if self._layout.opens and known.held == known.first:
            zeros = np.zeros((1, features.shape[1]), np.float32)
            return [known.text[known.held], *tokens], np.concatenate([zeros, features]), position - 1
        return tokens, features, position


class Chain(Steps):
    """Guesses of several prediction layers, one for each token; each has read the whole text, guesses included."""

    def __init__(self, head: StepHead, layers: int) -> None:
        super().__init__(head, MTP)
        self._layers = layers

    def read(self, known: HeadText, end: int) -> None:
        if end > known.held:
            tokens, features, position = self._missing(known, end)
            for layer in range(self._layers):
                self.head.choose(layer, position)
                self.head.read(tokens, features, position)
            known.hold(end)

    def rows(self, known: HeadText, limit: int) -> Rows:
        self.read(known, known.end - 1)
        # The newest row is not held: layers that guess nothing now have not read it.
        tokens, features, position = self._missing(known, known.end)
        for layer in range(self._layers):
            self.head.choose(layer, position)
            row, feature = self.head.predict(tokens, features, position)
            token = yield row
            tokens, features = [*tokens, token], np.concatenate([features, feature[None]])
