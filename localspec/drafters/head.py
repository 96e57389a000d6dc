"""Prediction heads: they read the target's hidden rows and guess the next tokens.

Heads that guess a token in a run (`Steps`, `Chain`): EAGLE-3 (Li et al. 2025) and multi-token prediction. Row p of the
head's cache is made of the target's feature at position p and of the text's token p + 1. A pass of the target gives the
features of all kept tokens; the newest token completes the last row. So one call of the head reads the missing rows and
guesses the first token. Each further guess is read with the feature
that the head itself computed, and forgotten after the cycle.

Heads that guess a whole block in one run (`Block`): DFlash, DSpark. Their cache holds the target's hidden rows as they
are, one for each position. A draft is one run over the newest token and places for those to come.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from threading import RLock
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np

from localspec.algorithm.protocols import Drafter, Proposal, Rule, Stopping
from localspec.drafters.model import FAILURES, Rows, draw
from localspec.errors import LocalspecError
from localspec.events import Source
from localspec.sampler.passes import HiddenRows, Pass, Row, standing

REMEMBERED = 8  # hidden rows that were read already: a text that is cut there can continue from them
UNKNOWN = -1  # in place of tokens that were not shown


class HeadText:
    """Row p of a head is made of the target's hidden row at position p and of the text's token p + 1.

    A head that guesses blocks has no tokens in its rows; reading the newest row twice costs little.
    """

    def __init__(self) -> None:
        self.text: list[int] = []  # and the newest token, once it was drafted from
        self.first = 0  # position of the first row
        self.held = 0  # position after the last row that the head has read and that stands
        self._base = 0  # position of the first hidden row that is remembered
        self._hidden: list[np.ndarray] = []  # float32 [columns] each
        # Hidden rows at the ends of prompt chunks, by position: texts are cut there.
        self._ends: dict[int, np.ndarray] = {}
        self._nothing = np.empty(0, dtype=np.float32)  # one of zeros
        self.state = np.empty(0, dtype=np.uint8)  # of the head's cache, in a saved text

    @property
    def end(self) -> int:
        """Position after the last hidden row."""
        return self._base + len(self._hidden)

    @property
    def unread(self) -> int:
        """Rows that can be read, once the token after the last is known."""
        return self.end - self.held

    def hidden(self, end: int) -> np.ndarray:
        """Hidden rows of the unread positions before `end`, float32 [rows, columns]."""
        return np.stack(self._hidden[self.held - self._base : end - self._base])

    def observe(self, batch: Pass, kept: int) -> None:
        """As `Drafter.observe`."""
        start, tokens = batch.start, batch.tokens[:kept]
        self.text += [UNKNOWN] * (start - len(self.text))
        stands = standing(self.text, start, tokens)
        self.text[stands:] = tokens[stands - start :]
        if batch.hidden is None or not kept:
            self._cut(stands, stands)
        else:
            self._cut(start, stands)
            if start > self.end:  # nobody showed what stands between
                self._base, self._hidden = start, []
                self.restart()
            self._hidden += list(batch.hidden[:kept])
            self._nothing = np.zeros_like(self._hidden[-1])
            if not batch.rows:
                self._ends[start + kept - 1] = self._hidden[-1].copy()  # a view would keep the chunk

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether all but the newest of these tokens were seen; remembers the answer."""
        end = len(tokens) - 1
        if self.end != end or not self._hidden or len(self.text) < end:
            return False
        self.text[end:] = tokens[end:]
        return True

    @property
    def bytes(self) -> int:
        """Bytes of the hidden rows and of the saved state, about."""
        return sum(row.nbytes for row in (*self._hidden, *self._ends.values(), self.state))

    def packed(self) -> np.ndarray:
        """All of it as bytes, for `unpacked` in another process."""
        rows, ends = [row.tobytes() for row in self._hidden], [row.tobytes() for row in self._ends.values()]
        numbers = (self.text, self.first, self.held, self._base, list(self._ends))
        return np.frombuffer(msgspec.msgpack.encode((*numbers, rows, ends, self.state.tobytes())), np.uint8)

    @classmethod
    def unpacked(cls, content: np.ndarray) -> "HeadText":
        known, kinds = cls(), tuple[list[int], int, int, int, list[int], list[bytes], list[bytes], bytes]
        found = msgspec.msgpack.decode(memoryview(content.data), type=kinds)
        known.text, known.first, known.held, known._base, positions, rows, ends, state = found
        known._hidden = [np.frombuffer(row, np.float32) for row in rows]
        known._ends = {
            place: np.frombuffer(row, np.float32) for place, row in zip(positions, ends, strict=True)
        }
        known._nothing = np.zeros_like(known._hidden[-1]) if rows else known._nothing
        known.state = np.frombuffer(state, np.uint8)
        return known

    def hold(self, held: int) -> None:
        """The head has read the rows before this position."""
        self.held = held
        forgotten = max(held - REMEMBERED - self._base, 0)
        del self._hidden[:forgotten]
        self._base += forgotten

    def restart(self) -> None:
        """The head has forgotten all its rows: it starts with the oldest remembered hidden row."""
        self.first = self.held = self._base

    def _cut(self, end: int, stands: int) -> None:
        """Hidden rows before `end` are of this text, and so are tokens before `stands`."""
        del self._hidden[max(end - self._base, 0) :]
        self._ends = {position: row for position, row in self._ends.items() if position < end}
        self._base = min(self._base, end)
        self.held = min(self.held, stands - 1, self.end)
        if self.held < self.first or self.first == self.held < self._base:
            self.restart()
        elif self.held < self._base:  # its hidden row was forgotten: zeros say nothing
            forgotten = range(self.held, self._base)
            self._hidden[:0] = [self._ends.get(position, self._nothing) for position in forgotten]
            self._base = self.held


class Head(Protocol):
    """A head with its cache, as llama/head.py has it."""

    busy_seconds: float
    capacity: int
    most_rows: int

    def cut(self, position: int) -> None: ...
    def state(self) -> np.ndarray | None: ...
    def restore(self, state: np.ndarray) -> bool: ...


class StepHead(Head, Protocol):
    """A head whose rows are a token and a feature each."""

    columns: int

    def features(self, hidden: np.ndarray) -> np.ndarray: ...
    def choose(self, layer: int, position: int) -> None: ...
    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None: ...
    def predict(
        self, tokens: Sequence[int], features: np.ndarray, position: int
    ) -> tuple[np.ndarray, np.ndarray]: ...


class BlockHead(Head, Protocol):
    """A head whose rows are hidden rows of its target."""

    most_guesses: int

    def read(self, hidden: np.ndarray, position: int) -> None: ...
    def guess(self, token: int, count: int, position: int) -> Callable[[int, int | None], Row]: ...


_Head = TypeVar("_Head", bound=Head)


class HeadDrafter(Drafter, Generic[_Head]):
    """Drafts with a head that reads together with its target; a kind of head says how it reads and guesses."""

    source = Source.HEAD
    keeps = True  # False: the head looks into its target's cache and has no rows of its own

    def __init__(self, head: _Head, needed: HiddenRows, is_end: Callable[[int], bool]) -> None:
        """`needed`: the hidden rows that the head reads."""
        self.head = head
        self.busy = RLock()  # while it reads or guesses: another lane may copy what it knows
        self.hidden_rows_needed = needed
        self._is_end = is_end
        self._known = HeadText()

    def _run(self, batches: Sequence[Sequence[int]], position: int) -> None:
        """Run the head on batches of tokens, with rows from this position on."""
        raise NotImplementedError

    def _append(self, end: int) -> None:
        """Append the unread rows before this position to the head's cache."""
        raise NotImplementedError

    def _rows(self, limit: int) -> Rows:
        """Read the rows that are missing, and guess up to `limit` tokens."""
        raise NotImplementedError

    def _cut(self, position: int) -> None:
        """Forget the rows from this position on."""
        self.head.cut(position)

    def _read(self, end: int) -> None:
        """Read the rows before this position, and hold them."""
        if end > self._known.held:
            self._append(end)
            self._known.hold(end)

    @property
    def busy_seconds(self) -> float:
        return self.head.busy_seconds

    def model_runs(self, depth: int) -> int:
        return depth

    def warm_up(self, batches: Sequence[Sequence[int]]) -> None:
        try:
            self._run(batches, self._known.held)
        finally:
            self._forget_guesses()

    def observe(self, batch: Pass, kept: int) -> None:
        with self.busy:
            self._observe(batch, kept)

    def _observe(self, batch: Pass, kept: int) -> None:
        known = self._known
        known.observe(batch, kept)
        self._forget_guesses()
        # What has no next token yet is read with the next guess, and so are the few tokens of a cycle.
        if known.unread > self.head.most_rows:
            self._make_room(0)
            try:
                self._read(min(known.end, len(known.text) - 1))
            except FAILURES as error:
                self._fail(error)

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        if self.failure or limit <= 0:
            return Proposal()
        with self.busy:
            if not self._known.ends_with(tokens):
                return Proposal()  # it did not see the newest passes, and will see the next one
            self._make_room(limit)
            proposal, failure = draw(self, self._rows(limit), tokens, limit, rule, stopping, self._is_end)
            self._forget_guesses()
            if failure:
                self._fail(failure)
        return proposal

    def saved(self) -> HeadText | None:
        """A copy of its memory of the text, for the text's return."""
        known = deepcopy(self._known)
        if self.keeps:
            if (state := self.head.state()) is None:
                return None
            known.state = state
        return known

    def restore(self, saved: HeadText | np.ndarray) -> None:
        """Continue a text that comes back, from the disk as bytes."""
        saved = HeadText.unpacked(saved) if isinstance(saved, np.ndarray) else saved
        self._cut(0)
        self._known = saved if not self.keeps or self.head.restore(saved.state) else HeadText()

    def _make_room(self, rows: int) -> None:
        """Start again with the newest part of the text if the cache cannot hold the new rows."""
        known = self._known
        if known.end - known.first + rows + 1 >= self.head.capacity:
            known.restart()
            self._forget_guesses()

    def _forget_guesses(self) -> None:
        known = self._known
        self._cut(known.held if known.held > known.first else 0)

    def _fail(self, error: LocalspecError) -> None:
        self.failure = error
        self._known = HeadText()


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a head's rows in its cache."""

    shift: int  # row p lies at position p + shift
    opens: bool  # whether a row of zeros stands before the first, for the text's first token
    keeps: bool = True  # False: it has no rows of its own, and all lie at one position


EAGLE3 = Layout(shift=0, opens=False)
MTP = Layout(shift=1, opens=True)
ASSISTANT = Layout(shift=1, opens=False, keeps=False)


class Steps(HeadDrafter[StepHead]):
    """A head with one run for each token."""

    def __init__(
        self, head: StepHead, needed: HiddenRows, is_end: Callable[[int], bool], layout: Layout
    ) -> None:
        super().__init__(head, needed, is_end)
        self.keeps = layout.keeps
        self._layout = layout

    def _run(self, batches: Sequence[Sequence[int]], position: int) -> None:
        position += self._layout.shift
        for batch in batches:
            self.head.predict(batch, np.zeros((len(batch), self.head.columns), np.float32), position)
            position += len(batch) if self.keeps else 0

    def _append(self, end: int) -> None:
        if self.keeps:
            self.head.read(*self._missing(end))

    def _rows(self, limit: int) -> Rows:
        known = self._known
        most = self.head.most_rows - 1 if self.keeps else 1
        self._read(known.end - min(known.unread, most))
        row, feature = self.head.predict(*self._missing(known.end))
        known.hold(known.end)
        position = known.end - 1 + self._layout.shift
        while True:
            token = yield row
            position += self.keeps
            row, feature = self.head.predict([token], feature[None], position)

    def _cut(self, position: int) -> None:
        if self.keeps:
            self.head.cut(position + self._layout.shift if position else 0)

    def _missing(self, end: int) -> tuple[list[int], np.ndarray, int]:
        """Tokens, features and the first position of the rows that are missing before `end`."""
        known = self._known
        tokens, features = known.text[known.held + 1 : end + 1], self.head.features(known.hidden(end))
        position = known.held + self._layout.shift
        if self._layout.opens and known.held == known.first:
            zeros = np.zeros((1, features.shape[1]), np.float32)
            return [known.text[known.held], *tokens], np.concatenate([zeros, features]), position - 1
        return tokens, features, position


class Chain(Steps):
    """Several prediction layers, one for each token; each has read the whole text, guesses included."""

    def __init__(
        self, head: StepHead, needed: HiddenRows, is_end: Callable[[int], bool], layers: int
    ) -> None:
        super().__init__(head, needed, is_end, MTP)
        self._layers = layers

    def _append(self, end: int) -> None:
        tokens, features, position = self._missing(end)
        for layer in range(self._layers):
            self.head.choose(layer, position)
            self.head.read(tokens, features, position)

    def _rows(self, limit: int) -> Rows:
        self._read(self._known.end - 1)
        # The newest row is not held: layers that guess nothing now have not read it.
        tokens, features, position = self._missing(self._known.end)
        for layer in range(self._layers):
            self.head.choose(layer, position)
            row, feature = self.head.predict(tokens, features, position)
            token = yield row
            tokens, features = [*tokens, token], np.concatenate([features, feature[None]])


class Block(HeadDrafter[BlockHead]):
    """A head with one run for any depth."""

    def model_runs(self, depth: int) -> int:
        return min(depth, 1)

    def _run(self, batches: Sequence[Sequence[int]], position: int) -> None:
        for batch in batches:
            self._cut(position)
            self.head.guess(batch[-1], self.head.most_guesses, position)

    def _append(self, end: int) -> None:
        self.head.read(self._known.hidden(end), self._known.held)

    def _rows(self, limit: int) -> Rows:
        known = self._known
        self._read(known.end)
        count = min(limit, self.head.most_guesses)
        row_of, token = self.head.guess(known.text[known.end], count, known.end), None
        for place in range(count):
            token = yield row_of(place, token)
