"""One text in a cache and the decoding on it: feed tokens, get rows, step back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from math import inf
from threading import RLock
from time import perf_counter
from typing import Any

import numpy as np

from localspec.algorithm.batcher import Part
from localspec.errors import ContextFull, RollbackUnsupported
from localspec.health.stopping import Closing, Stop, Stopped, heeded, interruptible
from localspec.llama.library import lib
from localspec.llama.shared import CUT, SharedContext, joined
from localspec.llama.states import (
    LEAST,
    Checkpoints,
    Companion,
    SavedText,
    restore_state,
    state_bytes,
    state_of,
)
from localspec.llama.stored_texts import SavedTexts
from localspec.llama.threads import NARROW, Threads
from localspec.sampler.chain import largest
from localspec.sampler.passes import HiddenRows, Pass, standing

_USUAL = 40  # largest logits that a sampler chain keeps by default
_SHORT = 4 * NARROW  # tokens: a prompt that takes no long pass
# Bytes of weights times tokens: about a tenth of a second on two cores. Beside it the thread costs nothing.
_LONG_PASS = 1e10
# Times the tokens that a copy spares: to copy one takes a tenth of the time of reading it on a GPU, less on a CPU.
_WORTH = 8


class Lane(Closing):
    """One sequence of tokens in a model's cache: a Decoder for the loop."""

    def __init__(
        self, shared: SharedContext, sequence: int, checkpoint_bytes: int, saved: SavedTexts
    ) -> None:
        self.model, self.capacity, self.chunk = shared.model, shared.capacity, shared.chunk
        self.rows_max, self.sequence = shared.rows_max, sequence
        self.tokens: list[int] = []  # tokens in the cache, in order, read-only
        self.threads = Threads(shared.threads.usual)
        self.busy_seconds = 0.0  # inside llama.cpp, for this lane or for it and others
        self.stop: Stop | None = None  # of the thread that decodes
        self.shared, self._memory = shared, shared.memory
        self._checkpoints = Checkpoints(checkpoint_bytes)
        self.saved_texts = saved  # of all lanes; its disk keeps them longer
        self.companion: Companion | None = None  # its state is saved and comes back with the cache's
        self._last_width = 0  # tokens in the last batch, the only ones a recurrent state has snapshots of
        self._padding = 0  # tokens behind the text, in the cache only
        self._kept = 0  # tokens in the spare sequence
        self._cuts = False  # whether rows may be cut

    @property
    def handle(self) -> Any:  # noqa: ANN401  a C pointer, for this package only
        return self.shared.handle

    @property
    def calling(self) -> RLock:
        """Held around calls into llama.cpp that the lane's context has a part in."""
        return self.shared.calling

    def close(self) -> None:
        """Free the cache of all lanes and the buffers of its rows; idempotent."""
        self.shared.close()

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def rollback_limit(self) -> int | None:
        """How many tokens of the last batch can be taken back: None is all of them, 0 is none."""
        return None if self.model.can_roll_back else self.shared.snapshots

    @property
    def needs_checkpoints(self) -> bool:
        return bool(self.shared.window) or not self.model.can_roll_back

    def decode(self, tokens: Sequence[int], rows: int) -> Pass:
        """Append tokens to the cache; rows for the last `rows` of them, float32 [vocab] or candidates.

        The rows are read-only views of llama.cpp's buffer, valid until the next decode, or where the context has
        several lanes until the next rollback. Raises ContextFull, NotEnoughMemory or BackendFailure; the cache is then
        what it was, or rewound where that is impossible.
        """
        assert 0 <= rows <= min(len(tokens), self.rows_max), f"{rows} rows of {len(tokens)} tokens"
        before, rest = self.length, tokens
        self._require_room(len(tokens))
        if not tokens:
            return Pass(before, tokens)
        found: list[Pass] = []
        try:
            while len(rest) > max(most := self._most_tokens(), rows):
                head = min(most, len(rest) - rows)
                found.append(self._pass(rest[:head], 0))
                rest = rest[head:]
            last = self._pass(rest, rows)
            return joined([*found, last]) if found else last
        except BaseException:  # Ctrl-C may come after llama.cpp took the tokens and before they were counted
            if self.shared.batcher is None or self.length != before:
                self.recover(before)
            raise

    def cut_rows(self, logits: int | None) -> None:
        """As `Decoder.cut_rows`; where the context has several lanes, rows stay whole."""
        self._cuts = logits is not None and logits <= self.shared.cut_to

    def prefer_rows(self, tokens: Sequence[int]) -> None:
        """Cut rows only where they come sooner, by passes over these tokens and the search for the largest logits."""
        seconds = {1: inf, None: inf}
        for logits in [*seconds] * 3 if self.shared.cut_to else []:
            self.cut_rows(logits)
            began = perf_counter()
            for row in self.decode(tokens, len(tokens)).rows:
                largest(row, _USUAL)
            seconds[logits] = min(seconds[logits], perf_counter() - began)
            self.rollback(0)
        if seconds[None] < seconds[1]:
            self.shared.cut_to = 0

    def _most_tokens(self) -> int:
        """How many tokens of a prompt the next pass may have; those of a reply that a seed repeats are the same."""
        return self.shared.most_tokens(None if self.threads.fixed else self.sequence)

    def _pass(self, tokens: Sequence[int], rows: int) -> Pass:
        batcher = self.shared.batcher
        if batcher is None:
            if rows and self.shared.cut_to:
                self._become(CUT if self._cuts else 0)
            whole = self._again(tokens, rows) if rows and self._cuts else None
            return self.shared.read_one(self, tokens, rows, whole)
        self.stop = heeded()
        return batcher.decode(Part(self.sequence, tokens, rows, self.threads.fixed))

    def _become(self, sequence: int) -> None:
        """The text goes over to this sequence, without a copy: the cells are the same."""
        if sequence != (former := self.sequence):
            with self.calling:
                lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
                lib.llama_memory_seq_cp(self._memory, former, sequence, -1, -1)
                self.sequence = sequence
                lib.llama_memory_seq_rm(self._memory, former, -1, -1)

    def _again(self, tokens: Sequence[int], rows: int) -> Callable[[int], np.ndarray]:
        """Gives whole rows of the pass over these tokens: it is taken back and read once more."""

        @cache
        def read() -> Sequence[Any]:
            self.rollback(self.length - len(tokens))
            self._cuts = False  # more rows of this reply would be too short
            return self.decode(tokens, rows).rows

        return lambda row: read()[row]

    def took(self, tokens: Sequence[int], padding: int, seconds: float, threads: int) -> None:
        """A pass has read these tokens, and padding behind them."""
        self.tokens.extend(tokens)
        self._last_width, self._padding = len(tokens) + padding, padding
        self.busy_seconds += seconds
        self.threads.now = threads

    def forget_padding(self) -> None:
        """Before other tokens come in its place, and in that of tokens that were rolled back."""
        if self._padding:
            forgotten = lib.llama_memory_seq_rm(self._memory, self.sequence, self.length, -1)
            assert forgotten, "padding is forgotten"
            self._padding = 0  # last: Ctrl-C may come before

    @contextmanager
    def running(self) -> Iterator[None]:
        """Surrounds a reply: passes wait a little for the lanes of other replies that run."""
        batcher = self.shared.batcher
        if batcher:
            batcher.join(self.sequence)
        try:
            yield
        finally:
            if batcher:
                batcher.leave(self.sequence)

    def release(self) -> None:
        """The rows of the latest pass are no longer read."""
        if self.shared.batcher:
            self.shared.batcher.release(self.sequence)

    def extract(self, wants: HiddenRows) -> None:
        """Give these hidden rows with every pass of any lane; called once, before the first decode."""
        self.shared.extract(wants)

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] = lambda: False) -> Iterator[Pass]:
        """Append tokens chunk by chunk without rows: stop iterating to cancel.

        `cancelled` ends it, on a CPU even inside a chunk. The cache then holds exactly the decoded chunks. Raises as
        `decode` does.
        """
        self._require_room(len(tokens))
        # A wide pass with too many threads can take a minute, so a narrow one tells first. No clock decides that:
        # the chunks of a prompt move its rows.
        leads = self.threads.contention is not None and len(tokens) > _SHORT
        done = 0
        with suppress(Stopped):
            while chunk := tokens[done : done + (NARROW if leads and not done else self._most_tokens())]:
                read = partial(self.decode, chunk, 0)
                is_long = len(chunk) * self.model.size_bytes >= _LONG_PASS
                busy = self.busy_seconds
                found = interruptible(read, Stop(), cancelled=cancelled) if is_long else read()
                self.saved_texts.measured(len(chunk), self.busy_seconds - busy)
                yield found
                done += len(chunk)

    def rollback(self, keep: int) -> None:
        assert 0 <= keep <= self.length, f"cannot keep {keep} of {self.length} tokens"
        dropped = self.tokens[keep:]
        self._checkpoints.forget_after(keep)
        try:
            if self.shared.batcher and self.model.can_roll_back and not self.shared.window:
                self._padding += len(dropped)  # to be forgotten later: another reply's pass may be under way
                del self.tokens[keep:]
                return
            with self.calling:
                self._forget_kept(keep)
                if not keep or self._can_step_back(keep, len(dropped) + self._padding):
                    # Before llama.cpp's own: if Ctrl-C comes between, the next rollback removes the rest.
                    del self.tokens[keep:]
                    if lib.llama_memory_seq_rm(self._memory, self.sequence, keep, -1):
                        self._padding = 0
                        return
                    self.tokens += dropped
        finally:
            self.release()
        raise RollbackUnsupported(
            f"{self.model.name} cannot step back from {self.length} to {keep} tokens",
            hint="run it without a draft model (--no-draft)",
        )

    def rewind(self, keep: int) -> int:
        """A cache that cannot step back that far returns to the newest earlier checkpoint, or to nothing."""
        try:
            self.rollback(keep)
        except RollbackUnsupported:
            with self.calling:
                self._return_to_checkpoint()
        return self.length

    def recall(self, tokens: Sequence[int], *, save: bool = True) -> float:
        began, shared = perf_counter(), standing(self.tokens, 0, tokens)
        with self.calling:
            lent = {lane: lane.lends(tokens) for lane in self.shared.lanes}
        other = max(lent, key=lent.__getitem__)
        most = max(shared, lent[other])
        stored = self.saved_texts.from_disk(tokens, most)  # other lanes decode meanwhile
        with self.calling:
            found = stored or self.saved_texts.take(tokens, most + LEAST)
        found = found or other.copied(tokens, shared + LEAST)
        with self.calling:
            restored = self._recall(found, shared, save=save)
        return perf_counter() - began if stored and restored else 0.0

    def lends(self, tokens: Sequence[int]) -> int:
        """How many of these tokens another lane need not read with a copy of this one; 0: it would be too large."""
        shared = standing(self.tokens, 0, tokens)
        if self.needs_checkpoints and shared < self.length:
            kept = [checkpoint.length for checkpoint in self._checkpoints.lasting]
            shared = max((length for length in kept if length <= shared), default=0)
        return shared if self.length <= _WORTH * shared else 0

    def copied(self, tokens: Sequence[int], at_least: int) -> SavedText | None:
        """A copy of the lane for another one, while a reply runs here; None if it lends fewer tokens by now."""
        with self.companion.busy if self.companion else nullcontext(), self.calling:
            if self.lends(tokens) < at_least:
                return None
            return self._copy()

    def checkpoint(self, *, lasting: bool) -> None:
        """Over drafts only a recurrent state cannot step back by itself."""
        if self.length and (self.needs_checkpoints if lasting else not self.model.can_roll_back):
            with self.calling:
                self.forget_padding()
                self._forget_kept(0)
                if self.shared.spare and not lasting:
                    self.shared.keep(self.sequence)
                    self._kept = self.length
                    return
                self._checkpoints.take(self.handle, self.length, self.sequence, lasting=lasting)

    def wants_storing(self) -> bool:
        with self.calling:
            return self.saved_texts.wants(self.tokens, state_bytes(self.handle, self.sequence))

    def store(self, *, resting: bool) -> None:
        with self.calling:
            self.forget_padding()
            self.saved_texts.store(
                self.tokens, state_bytes(self.handle, self.sequence), self._copy, resting=resting
            )

    def _copy(self) -> SavedText | None:
        """A copy of the text, if the budget of saved texts has room for it."""
        kept = self._checkpoints
        state = state_of(self.handle, self.sequence, most_bytes=self.saved_texts.budget - kept.bytes)
        if state is None:
            return None
        beside = self.companion and self.companion.saved()
        return SavedText(list(self.tokens), state, kept.lasting, beside, self._padding)

    def _recall(self, found: SavedText | None, shared: int, *, save: bool) -> bool:
        """Whether another text took the place of the present one, which has `shared` tokens of the prompt."""
        self.forget_padding()
        if save and self.length - shared >= LEAST and (copy := self._copy()):
            self.saved_texts.save(copy)
        if not found:
            return False
        self._clear()
        try:
            if not restore_state(self.handle, found.state, self.sequence):
                self._clear()
                return False
            self.tokens += found.tokens
            self._padding = found.padding
            self._checkpoints.become(found.checkpoints)
            if self.companion and found.companion is not None:
                self.companion.restore(found.companion)
        except BaseException:  # Ctrl-C
            self._clear()
            raise
        return True

    def _require_room(self, count: int) -> None:
        if self.length + count > self.capacity:
            raise ContextFull(
                f"{self.length + count} tokens do not fit into a context of {self.capacity}",
                hint="shorten the prompt or use a longer context (--context)",
            )

    def _can_step_back(self, keep: int, dropped: int) -> bool:
        """Whether C's cache can forget all but `keep` tokens, `dropped` ones."""
        if not self.model.can_roll_back:
            # llama.cpp does not check that its snapshots are of the last batch; older ones are of other tokens.
            return dropped <= max(0, min(self.shared.snapshots, self._last_width - 1))
        # The next token has to find all that its window holds.
        window = self.shared.window
        return not window or (
            lib.llama_memory_seq_pos_min(self._memory, self.sequence) <= max(0, keep + 1 - window)
        )

    def _return_to_checkpoint(self) -> None:
        """Back to the newest checkpoint, or to nothing."""
        try:
            if self._kept:
                self.shared.bring_back(self.sequence)
                self._last_width = self._padding = 0
                del self.tokens[self._kept :]
                return
            length = self._checkpoints.restore_newest(self.handle, self.sequence)
            self._last_width = self._padding = 0  # its snapshots are of a state that is no more
            if not (length and lib.llama_memory_seq_rm(self._memory, self.sequence, length, -1)):
                self._clear()
            del self.tokens[length:]
        except BaseException:  # Ctrl-C
            self._clear()
            raise

    def recover(self, length: int) -> Sequence[int]:
        """After a failed decode: step back to the earlier cache, or as near as possible; returns what that lost."""
        text = self.tokens[:length]
        with self.calling:
            lib.llama_synchronize(self.handle)
            held = lib.llama_memory_seq_pos_max(self._memory, self.sequence) + 1
            del self.tokens[length:]
            # Snapshots reach back to the first token of a batch, not before it.
            self._last_width = self._padding = 0
            possible = not length or self._can_step_back(length, abs(held - length))
            if not (possible and lib.llama_memory_seq_rm(self._memory, self.sequence, length, -1)):
                self._return_to_checkpoint()
        return text[self.length :]

    def _forget_kept(self, length: int) -> None:
        """Drop the spare sequence if it holds more tokens: the text differs there."""
        if self._kept > length:
            self._kept = 0
            lib.llama_memory_seq_rm(self._memory, self.shared.spare, -1, -1)

    def _clear(self) -> None:
        self._kept = 0
        self.shared.forget(self.sequence)
        self._last_width = self._padding = 0
        self._checkpoints.forget_after(0)
        self.tokens.clear()
