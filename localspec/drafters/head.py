"""A prediction head that proposes: it reads the target's hidden rows along with it, and guesses what follows them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localspec.algorithm.protocols import Proposal, Reading, Rule, Stopping
from localspec.drafters.drawing import FAILURES, Rows, draw
from localspec.drafters.head_text import HeadText
from localspec.errors import LocalspecError
from localspec.events import Source
from localspec.passes import HiddenRows, Pass


class Head(Protocol):
    """A head with its cache."""

    @property
    def busy_seconds(self) -> float:
        """Time spent inside it since it was made."""

    @property
    def capacity(self) -> int:
        """Rows that the cache can hold."""

    @property
    def most_rows(self) -> int:
        """That one call reads."""

    def cut(self, position: int) -> None:
        """Forget the rows from this position on."""

    def state(self) -> np.ndarray | None:
        """A copy of the cache's state, uint8; None where there is none to copy."""

    def restore(self, state: np.ndarray) -> bool:
        """Bring a state back; False where that fails, and the cache is empty then."""


@dataclass(frozen=True, slots=True)
class SavedHead:
    """What a head knew of a text, and the state of its cache; None where it keeps no rows of its own."""

    known: HeadText
    state: np.ndarray | None

    @property
    def bytes(self) -> int:
        return self.known.bytes + (0 if self.state is None else len(self.state))


class Guesses(Protocol):
    """How a kind of head reads and guesses; positions are those of the text."""

    @property
    def head(self) -> Head:
        """What does it."""

    @property
    def keeps(self) -> bool:
        """Whether the head has rows of its own; else it looks into its target's cache."""

    def steps(self, depth: int) -> int:
        """As `Drafter.steps`."""

    def rehearse(self, batches: Sequence[Sequence[int]], position: int) -> None:
        """As `Drafter.rehearse`, with rows from this position on."""

    def read(self, known: HeadText, end: int) -> None:
        """Read the rows before this position, and hold them."""

    def rows(self, known: HeadText, limit: int) -> Rows:
        """Read the rows that are missing, and guess up to `limit` tokens."""

    def cut(self, position: int) -> None:
        """Forget the rows from this position on."""


class HeadDrafter:
    """Drafts with a head that reads along while its target does."""

    source = Source.HEAD

    def __init__(self, guesses: Guesses, wants: HiddenRows, is_end: Callable[[int], bool]) -> None:
        """`wants`: what the head reads of its target."""
        self.guesses = guesses
        self.wants = wants
        self.failure: LocalspecError | None = None
        self.steps = guesses.steps
        self._is_end = is_end
        self._known = HeadText()

    @property
    def busy_seconds(self) -> float:
        return self.guesses.head.busy_seconds

    def rehearse(self, batches: Sequence[Sequence[int]]) -> None:
        try:
            self.guesses.rehearse(batches, self._known.held)
        finally:
            self._forget_guesses()

    def begin(self) -> None:
        self.failure = None

    def follow(self, passed: Pass, kept: int) -> None:
        known = self._known
        known.follow(passed, kept)
        self._forget_guesses()
        # What has no next token yet is read with the next guess, and so are the few tokens of a cycle.
        if known.unread > self.guesses.head.most_rows:
            self._make_room(0)
            try:
                self.guesses.read(known, min(known.end, len(known.text) - 1))
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
        known = self._known
        if self.failure or limit <= 0 or not known.ends_with(tokens):
            return Proposal()  # it did not see the newest passes, and will see the next one
        self._make_room(limit)
        rows = self.guesses.rows(known, limit)
        proposal, failure = draw(self, rows, tokens, limit, rule, stopping, self._is_end)
        self._forget_guesses()
        if failure:
            self._fail(failure)
        return proposal

    def saved(self) -> SavedHead | None:
        """A copy of what it knows of the text, for when the text comes back."""
        state = self.guesses.head.state() if self.guesses.keeps else None
        return None if state is None and self.guesses.keeps else SavedHead(self._known.copy(), state)

    def restore(self, saved: SavedHead) -> None:
        """Go on with a text that comes back."""
        self.guesses.cut(0)
        whole = saved.state is None or self.guesses.head.restore(saved.state)
        self._known = saved.known if whole else HeadText()

    def _make_room(self, rows: int) -> None:
        """Begin anew with the newest part of the text where the cache cannot hold so many more rows."""
        known = self._known
        if known.end - known.first + rows + 1 >= self.guesses.head.capacity:
            known.restart()
            self._forget_guesses()

    def _forget_guesses(self) -> None:
        known = self._known
        self.guesses.cut(known.held if known.held > known.first else 0)

    def _fail(self, error: LocalspecError) -> None:
        self.failure = error
        self._known = HeadText()
