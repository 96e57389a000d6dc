"""A prediction head that guesses a whole block of tokens in one run: DFlash, DSpark.

Its cache holds the target's hidden rows as they are, one for each position of the text. A draft is one run over the
newest token and places for those to come, whatever their number.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from localspec.algorithm.protocols import Draw, Proposal, Reading, Rule, Stopping
from localspec.drafters.head_text import HeadText
from localspec.drafters.model import FAILURES
from localspec.errors import LocalspecError
from localspec.events import Source
from localspec.passes import HiddenRows, Pass, Row


class Guesses(Protocol):
    """What may stand at each place of a block."""

    def row(self, place: int, before: int | None) -> Row:
        """Of a place from 0; `before`: the token that was drawn at the place before."""


class BlockHead(Protocol):
    """A head with its cache."""

    most_guesses: int  # tokens of a block

    @property
    def busy_seconds(self) -> float:
        """Time spent inside it since it was made."""

    @property
    def capacity(self) -> int:
        """Rows that the cache can hold."""

    @property
    def most_rows(self) -> int:
        """That one call reads."""

    def read(self, hidden: np.ndarray, position: int) -> None:
        """Append the target's hidden rows of these positions, float32 [rows, columns]."""

    def guess(self, token: int, count: int, position: int) -> Guesses:
        """Of the `count` tokens after this one, valid until the next call."""

    def cut(self, position: int) -> None:
        """Forget the rows from this position on."""


class BlockDrafter:
    """Drafts with such a head: one run, whatever the depth."""

    source = Source.HEAD

    def __init__(self, head: BlockHead, wants: HiddenRows, is_end: Callable[[int], bool]) -> None:
        """`wants`: what the head reads of its target."""
        self.head = head
        self.wants = wants
        self.failure: LocalspecError | None = None
        self._is_end = is_end
        self._known = HeadText()

    @property
    def busy_seconds(self) -> float:
        return self.head.busy_seconds

    def steps(self, depth: int) -> int:
        return min(depth, 1)

    def rehearse(self, batches: Sequence[Sequence[int]]) -> None:
        try:
            for batch in batches:
                self.head.cut(self._known.held)
                self.head.guess(batch[-1], self.head.most_guesses, self._known.held)
        finally:
            self._forget_guesses()

    def begin(self) -> None:
        self.failure = None

    def follow(self, passed: Pass, kept: int) -> None:
        self._known.follow(passed, kept)
        self._forget_guesses()
        if self._known.unread > self.head.most_rows:
            try:
                self._read(0)
            except FAILURES as error:
                self._fail(error)

    def reading(self, tokens: Sequence[int]) -> Reading:
        return Reading()

    def read(self, tokens: Sequence[int], most: int) -> int:
        return 0

    def restart(self, tokens: Sequence[int], window: int) -> None:
        """It reads along."""

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        if self.failure or limit <= 0 or not self._known.ends_with(tokens):
            return Proposal()  # it did not see the newest passes, and will see the next one
        text, draws = list(tokens), list[Draw]()
        count = min(limit, self.head.most_guesses)
        try:
            self._read(count)
            guesses = self.head.guess(tokens[-1], count, len(tokens) - 1)
            for place in range(count):
                row = guesses.row(place, draws[-1].token if draws else None)
                draw = rule.draw(row, text, len(tokens))
                if stopping and not stopping.keeps(draw.confidence, len(draws)):
                    break
                draws.append(draw)
                text.append(draw.token)
                # Nothing can follow an end-of-generation token; it stays, so that stopping biases nothing.
                if self._is_end(draw.token):
                    break
        except FAILURES as error:
            # What was drawn before is proposed: dropping it could favour the tokens that do not fail.
            self._fail(error)
            limit = len(draws)
        self._forget_guesses()
        return Proposal.drawn(draws, self.source, depth=limit, runs=1)

    def _read(self, room: int) -> None:
        """Read all hidden rows; the oldest are forgotten where the cache has no room for so many guesses as well."""
        known = self._known
        if known.end - known.first + room + 1 >= self.head.capacity:
            known.restart()
            self._forget_guesses()
        if known.unread:
            self.head.read(known.hidden(known.end), known.held)
            known.hold(known.end)

    def _forget_guesses(self) -> None:
        known = self._known
        self.head.cut(known.held if known.held > known.first else 0)

    def _fail(self, error: LocalspecError) -> None:
        self.failure = error
        self._known = HeadText()
