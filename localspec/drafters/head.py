"""A prediction head that proposes: it reads the target's hidden rows, and guesses what follows them.

EAGLE-3 (Li et al. 2025) and multi-token prediction share a cycle. Row p of the head's cache is made of the target's
feature at position p and of the text's token p + 1. What the target has decoded gives features, so after a pass the
rows of all kept tokens but the last can be read, and the newest token completes the last one: one call of the head
reads what is missing and guesses the first token. Each further guess is read with the feature that the head itself
computed, and forgotten after the cycle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localspec.algorithm.protocols import Draw, Proposal, Reading, Rule, Stopping
from localspec.drafters.head_text import HeadText
from localspec.drafters.model import FAILURES
from localspec.errors import LocalspecError
from localspec.events import Source
from localspec.passes import HiddenRows, Pass


class Head(Protocol):
    """A head with its cache, whose rows are a token and a feature each."""

    @property
    def busy_seconds(self) -> float:
        """Time spent inside it since it was made."""

    @property
    def capacity(self) -> int:
        """Rows that the cache can hold."""

    @property
    def columns(self) -> int:
        """Of a feature."""

    @property
    def most_rows(self) -> int:
        """That `predict` takes."""

    def features(self, hidden: np.ndarray) -> np.ndarray:
        """What it reads of hidden rows of the target, a copy: float32 [rows, columns]."""

    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None:
        """Append rows to the cache, for no logits."""

    def predict(
        self, tokens: Sequence[int], features: np.ndarray, position: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append rows to the cache; the logits after the last one, valid until the next call, and its feature."""

    def cut(self, position: int) -> None:
        """Forget the rows from this position on."""


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


class HeadDrafter:
    """Drafts with a head, one run of it for each token; it reads along while the target does."""

    source = Source.HEAD

    def __init__(self, head: Head, layout: Layout, wants: HiddenRows, is_end: Callable[[int], bool]) -> None:
        """`wants`: what the head reads of its target."""
        self.head = head
        self.wants = wants
        self.failure: LocalspecError | None = None
        self._layout = layout
        self._is_end = is_end
        self._known = HeadText()

    @property
    def busy_seconds(self) -> float:
        return self.head.busy_seconds

    def steps(self, depth: int) -> int:
        return depth

    def rehearse(self, batches: Sequence[Sequence[int]]) -> None:
        position = self._known.held + self._layout.shift
        try:
            for batch in batches:
                self.head.predict(batch, np.zeros((len(batch), self.head.columns), np.float32), position)
                position += len(batch) if self._layout.keeps else 0
        finally:
            self._forget_guesses()

    def begin(self) -> None:
        self.failure = None

    def follow(self, passed: Pass, kept: int) -> None:
        self._known.follow(passed, kept)
        self._forget_guesses()
        # What has no next token yet is read with the next guess, and so are the few tokens of a cycle.
        if self._known.unread > self.head.most_rows:
            try:
                self._make_room(0)
                self._read(min(self._known.end, len(self._known.text) - 1))
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
        text, position = list(tokens), len(tokens) - 2 + self._layout.shift
        draws: list[Draw] = []
        runs = 0
        try:
            row, feature = self._first_guess(limit)
            while True:
                runs += 1
                draw = rule.draw(row, text, len(tokens))
                if stopping and not stopping.keeps(draw.confidence, len(draws)):
                    break
                draws.append(draw)
                text.append(draw.token)
                # Nothing can follow an end-of-generation token; it stays in the proposal, so stopping biases nothing.
                if len(draws) == limit or self._is_end(draw.token):
                    break
                if stopping and not stopping.goes_on(len(draws)):
                    break
                position += self._layout.keeps
                row, feature = self.head.predict([draw.token], feature[None], position)
        except FAILURES as error:
            # What was drawn before is proposed: dropping it could favour the tokens that do not fail.
            self._fail(error)
            limit = len(draws)
        self._forget_guesses()
        return Proposal.drawn(draws, self.source, depth=limit, runs=runs)

    def _first_guess(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the rows that are missing, the newest token's last: the logits after it, and its feature."""
        known = self._known
        self._make_room(limit)
        rows = self.head.most_rows - 1 if self._layout.keeps else 1
        self._read(known.end - min(known.unread, rows))
        found = self.head.predict(*self._rows(known.end))
        known.hold(known.end)
        return found

    def _make_room(self, rows: int) -> None:
        """Begin anew with the newest part of the text where the cache cannot hold so many more rows."""
        known = self._known
        if self._layout.keeps and known.end - known.first + rows >= self.head.capacity:
            known.restart()
            self._forget_guesses()

    def _read(self, end: int) -> None:
        """Read the rows before this position."""
        known = self._known
        if end > known.held:
            if self._layout.keeps:
                self.head.read(*self._rows(end))
            known.hold(end)

    def _rows(self, end: int) -> tuple[list[int], np.ndarray, int]:
        """Tokens, features and the first position of the rows that are missing before `end`."""
        known = self._known
        tokens, features = known.text[known.held + 1 : end + 1], self.head.features(known.hidden(end))
        if self._layout.opens and known.held == known.first:
            zeros = np.zeros((1, features.shape[1]), np.float32)
            tokens, features = [known.text[known.held], *tokens], np.concatenate([zeros, features])
            return tokens, features, known.held + self._layout.shift - 1
        return tokens, features, known.held + self._layout.shift

    def _forget_guesses(self) -> None:
        known = self._known
        if self._layout.keeps:
            self.head.cut(known.held + self._layout.shift if known.held > known.first else 0)

    def _fail(self, error: LocalspecError) -> None:
        self.failure = error
        self._known = HeadText()
