"""Prediction heads: they read the target's hidden rows and draft the next tokens.

Heads with one run for each token (`Steps`, `ChainDrafter`): EAGLE-3 (Li et al. 2025) and multi-token prediction. Row p
of the head's cache combines the target's feature at position p and the text's token p + 1. A pass of the target gives
the features of all accepted tokens; the newest token completes the last row. So one call of the head prefills the
missing rows and drafts the first token. Each further draft token is decoded with the feature that the head itself
computed. Its row is removed after the cycle.

Heads with one run for a whole block (`BlockDrafter`): DFlash, DSpark. Their cache contains the target's hidden rows
unchanged, one for each position. A draft is one run over the newest token and placeholders for the next ones.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

import msgspec
import numpy as np

from localspec.algorithm.protocols import Drafter, Proposal, Rule, Stopping
from localspec.drafters.model import FAILURES, Rows, draw
from localspec.errors import LocalspecError
from localspec.events import Source
from localspec.sampler.passes import ForwardPass, HiddenRows, Row, common_prefix_length

REMEMBERED = 8  # number of newest hidden rows that stay for a rollback after the head has read them


class HeadText:
    """The text of a draft head: its tokens, and the target's hidden rows that the head has read or can still read."""

    def __init__(self) -> None:
        self.text: list[int] = []  # tokens of the text; the newest one is added when a draft begins
        self.first = 0  # position of the first row in the head's cache
        self.held = 0  # position after the last valid row in the head's cache
        self._base = 0  # text position of the row `_hidden[0]`
        self._hidden: list[np.ndarray] = []  # hidden rows, float32 [columns] each
        self._ends: dict[int, np.ndarray] = {}  # last hidden row of each prompt chunk, by position
        # Zeros to replace a forgotten hidden row; empty until the length of a row is known.
        self._nothing = np.empty(0, dtype=np.float32)
        self.state = np.empty(0, dtype=np.uint8)  # the content of the head's cache, for a prompt cache

    @property
    def end(self) -> int:
        """The position after the last hidden row."""
        return self._base + len(self._hidden)

    def hidden(self, end: int) -> np.ndarray:
        """Return the hidden rows of the unread positions before `end`, float32 [rows, columns]."""
        return np.stack(self._hidden[self.held - self._base : end - self._base])

    def observe(self, batch: ForwardPass, kept: int) -> None:
        start, tokens = batch.start, batch.tokens[:kept]
        self.text += [-1] * (start - len(self.text))  # -1 replaces a token of no observed pass
        stands = common_prefix_length(self.text, start, tokens)
        self.text[stands:] = tokens[stands - start :]
        if batch.hidden is None or not kept:
            self._cut(stands, stands)
        else:
            self._cut(start, stands)
            if start > self.end:  # hidden rows before `start` are missing
                self._base, self._hidden = start, []
                self.restart()
            self._hidden += list(batch.hidden[:kept])
            self._nothing = np.zeros_like(self._hidden[-1])
            if not batch.rows:
                self._ends[start + kept - 1] = self._hidden[-1].copy()  # a view would keep all rows in memory

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Return whether all of these tokens but the newest were observed; if they were, add the newest one."""
        end = len(tokens) - 1
        if self.end != end or not self._hidden or len(self.text) < end:
            return False
        self.text[end:] = tokens[end:]
        return True

    @property
    def bytes(self) -> int:
        return sum(row.nbytes for row in (*self._hidden, *self._ends.values(), self.state))

    def packed(self) -> np.ndarray:
        """Return the head state as bytes, for `unpacked` in another process."""
        rows, ends = [row.tobytes() for row in self._hidden], [row.tobytes() for row in self._ends.values()]
        numbers = (self.text, self.first, self.held, self._base, list(self._ends))
        return np.frombuffer(msgspec.msgpack.encode((*numbers, rows, ends, self.state.tobytes())), np.uint8)

    @classmethod
    def unpacked(cls, content: np.ndarray) -> "HeadText":
        head_text, kinds = cls(), tuple[list[int], int, int, int, list[int], list[bytes], list[bytes], bytes]
        found = msgspec.msgpack.decode(memoryview(content.data), type=kinds)
        head_text.text, head_text.first, head_text.held, head_text._base, positions, rows, ends, state = found
        head_text._hidden = [np.frombuffer(row, np.float32) for row in rows]
        head_text._ends = {
            place: np.frombuffer(row, np.float32) for place, row in zip(positions, ends, strict=True)
        }
        head_text._nothing = np.zeros_like(head_text._hidden[-1]) if rows else head_text._nothing
        head_text.state = np.frombuffer(state, np.uint8)
        return head_text

    def hold(self, held: int) -> None:
        """Record that the head has read the rows before this position."""
        self.held = held
        forgotten = max(held - REMEMBERED - self._base, 0)
        del self._hidden[:forgotten]
        self._base += forgotten

    def restart(self) -> None:
        """Record that the head's cache is empty. The head then begins with the first row in `_hidden`."""
        self.first = self.held = self._base

    def _cut(self, end: int, unchanged: int) -> None:
        """Drop the hidden rows from `end` on, and the head's rows that need more than the first `unchanged` tokens."""
        del self._hidden[max(end - self._base, 0) :]
        self._ends = {position: row for position, row in self._ends.items() if position < end}
        self._base = min(self._base, end)
        self.held = min(self.held, unchanged - 1, self.end)
        if self.held < self.first or self.first == self.held < self._base:
            self.restart()
        elif self.held < self._base:  # rows of `_ends`, or zeros, replace forgotten rows
            forgotten = range(self.held, self._base)
            self._hidden[:0] = [self._ends.get(position, self._nothing) for position in forgotten]
            self._base = self.held


class Head(Protocol):
    """A head with its cache (llama/head.py)."""

    busy_seconds: float
    calling: Condition  # a lock for each call into llama.cpp, and for a copy of another slot's state
    capacity: int
    most_rows: int

    def cut(self, position: int) -> None: ...
    def state(self) -> np.ndarray | None: ...
    def restore(self, state: np.ndarray) -> bool: ...


class StepHead(Head, Protocol):
    """A head whose cache has rows that combine a token and a feature."""

    columns: int
    layer: int | None  # the prediction layer of the next runs; None: the head has only one

    def features(self, hidden: np.ndarray, position: int) -> np.ndarray: ...
    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None: ...
    def predict(self, tokens: list[int], features: np.ndarray, position: int) -> tuple[Row, np.ndarray]: ...


class BlockHead(Head, Protocol):
    """A head whose cache has the hidden rows of its target, unchanged."""

    most_draft_tokens: int

    def read(self, hidden: np.ndarray, position: int) -> None: ...
    def guess(self, token: int, count: int, position: int) -> Callable[[int, int | None], Row]: ...


class HeadDrafter(Drafter):
    """A drafter that runs a head on the target's hidden rows; each kind defines `_run`, `_append` and `_rows`."""

    source = Source.HEAD
    keeps = True  # whether the head keeps a KV cache of its own; if not, it reads the target's cache
    head: Head

    def __init__(self, head: Head, needed: HiddenRows, is_end: Callable[[int], bool]) -> None:
        """`needed`: the hidden rows that the head reads."""
        self.head = head
        self.works = False  # True while the head reads or drafts: no other slot copies its state then
        self.hidden_rows_needed = needed
        self._is_end = is_end
        self._known = HeadText()

    def _run(self, batches: Sequence[Sequence[int]], position: int) -> None:
        """Run the head on batches of tokens from this position on, to warm it up or time it."""
        raise NotImplementedError

    def _append(self, end: int) -> None:
        """Append the unread rows before this position to the head's cache."""
        raise NotImplementedError

    def _rows(self, limit: int) -> Rows:
        """Read the missing hidden rows, then yield the logits of each draft token, for at most `limit` tokens."""
        raise NotImplementedError

    def _cut(self, position: int) -> None:
        self.head.cut(position)

    def _read(self, end: int) -> None:
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
            self._forget_draft_tokens()

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self.head.calling:
            self.works = True
        try:
            yield
        finally:
            self.works = False

    def observe(self, batch: ForwardPass, kept: int) -> None:
        with self._working():
            known = self._known
            known.observe(batch, kept)
            self._forget_draft_tokens()
            # A few unread rows wait for the next draft. The newest row always waits, because it needs the next token.
            if known.end - known.held > self.head.most_rows:
                self._free_space(0)
                try:
                    self._read(min(known.end, len(known.text) - 1))
                except FAILURES as error:
                    self._fail(error)

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        if self.failure or limit <= 0:
            return Proposal()
        with self._working():
            if not self._known.ends_with(tokens):
                return Proposal()  # the head missed the newest passes, so this cycle has no draft
            self._free_space(limit)
            proposal, failure = draw(self, self._rows(limit), tokens, limit, rule, stopping, self._is_end)
            self._forget_draft_tokens()
            if failure:
                self._fail(failure)
        return proposal

    def saved(self) -> HeadText | None:
        """Return a copy of the head state, to continue the text later; None if the head's cache cannot be copied."""
        copied = deepcopy(self._known)
        if self.keeps:
            if (state := self.head.state()) is None:
                return None
            copied.state = state
        return copied

    def restore(self, saved: HeadText | np.ndarray) -> None:
        """Continue from a saved head state, which may be bytes from the disk."""
        saved = HeadText.unpacked(saved) if isinstance(saved, np.ndarray) else saved
        self._cut(0)
        self._known = saved if not self.keeps or self.head.restore(saved.state) else HeadText()

    def _free_space(self, rows: int) -> None:
        """Clear the head's cache, and read the newest part of the text again, if it has no room for `rows` more."""
        known = self._known
        if known.end - known.first + rows + 1 >= self.head.capacity:
            known.restart()
            self._forget_draft_tokens()

    def _forget_draft_tokens(self) -> None:
        known = self._known
        self._cut(known.held if known.held > known.first else 0)

    def _fail(self, error: LocalspecError) -> None:
        self.failure = error
        self._known = HeadText()


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of the rows in a head's cache."""

    # Whether row p is at position p + 1. Position 0 then has zeros, for the text's first token.
    is_shifted: bool
    keeps: bool = True  # whether the head has a KV cache; without one, it drafts all tokens at one position


EAGLE3 = Layout(is_shifted=False)
MTP = Layout(is_shifted=True)
ASSISTANT = Layout(is_shifted=True, keeps=False)


class Steps(HeadDrafter):
    head: StepHead

    def __init__(
        self, head: StepHead, needed: HiddenRows, is_end: Callable[[int], bool], layout: Layout
    ) -> None:
        super().__init__(head, needed, is_end)
        self.keeps = layout.keeps
        self._layout = layout

    def _run(self, batches: Sequence[Sequence[int]], position: int) -> None:
        position += self._layout.is_shifted
        for batch in batches:
            self.head.predict([*batch], np.zeros((len(batch), self.head.columns), np.float32), position)
            position += len(batch) if self.keeps else 0

    def _append(self, end: int) -> None:
        if self.keeps:
            self.head.read(*self._missing(end))

    def _rows(self, limit: int) -> Rows:
        known = self._known
        most = self.head.most_rows - 1 if self.keeps else 1
        self._read(known.end - min(known.end - known.held, most))
        row, feature = self.head.predict(*self._missing(known.end))
        known.hold(known.end)
        position = known.end - 1 + self._layout.is_shifted
        while True:
            token = yield row
            position += self.keeps
            row, feature = self.head.predict([token], feature[None], position)

    def _cut(self, position: int) -> None:
        if self.keeps:
            self.head.cut(position + self._layout.is_shifted if position else 0)

    def _missing(self, end: int) -> tuple[list[int], np.ndarray, int]:
        """Return the tokens, features and first position of the missing rows before `end`."""
        known = self._known
        tokens = known.text[known.held + 1 : end + 1]
        features = self.head.features(known.hidden(end), known.held)
        position = known.held + self._layout.is_shifted
        if self._layout.is_shifted and self.keeps and known.held == known.first:
            zeros = np.zeros((1, features.shape[1]), np.float32)
            return [known.text[known.held], *tokens], np.concatenate([zeros, features]), position - 1
        return tokens, features, position


class ChainDrafter(Steps):
    """A head of several prediction layers, one for each draft token; each layer reads the text and the draft."""

    def __init__(
        self, head: StepHead, needed: HiddenRows, is_end: Callable[[int], bool], layers: int
    ) -> None:
        super().__init__(head, needed, is_end, MTP)
        self._layers = layers

    def _append(self, end: int) -> None:
        tokens, features, position = self._missing(end)
        for layer in range(self._layers):
            self.head.layer = layer
            self.head.read(tokens, features, position)

    def _rows(self, limit: int) -> Rows:
        self._read(self._known.end - 1)
        # The next draft reads the newest row again, because this draft may end before all layers have read it.
        tokens, features, position = self._missing(self._known.end)
        for layer in range(self._layers):
            self.head.layer = layer
            row, feature = self.head.predict(tokens, features, position)
            token = yield row
            tokens, features = [*tokens, token], np.concatenate([features, feature[None]])


class BlockDrafter(HeadDrafter):
    head: BlockHead

    def model_runs(self, depth: int) -> int:
        return min(depth, 1)

    def _run(self, batches: Sequence[Sequence[int]], position: int) -> None:
        for batch in batches:
            self._cut(position)
            self.head.guess(batch[-1], self.head.most_draft_tokens, position)

    def _append(self, end: int) -> None:
        self.head.read(self._known.hidden(end), self._known.held)

    def _rows(self, limit: int) -> Rows:
        known = self._known
        self._read(known.end)
        count = min(limit, self.head.most_draft_tokens)
        row_of, token = self.head.guess(known.text[known.end], count, known.end), None
        for place in range(count):
            token = yield row_of(place, token)
