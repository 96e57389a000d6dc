"""Decoding on one slot of a context: feed tokens, get rows of logits, roll back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from localspec.algorithm.batcher import Batcher
from localspec.algorithm.images import ImageRow, next_piece
from localspec.algorithm.pass_order import Part
from localspec.caches.prompt_cache import WORTH_A_COPY, PromptCache
from localspec.errors import ContextFull, RollbackUnsupported
from localspec.llama.cache import WIDEST
from localspec.llama.cached_text import CachedText
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.llama.shared import CUT, SharedContext, joined
from localspec.sampler.chain import largest
from localspec.sampler.passes import ForwardPass, common_prefix_length
from localspec.stopping import Stop, WorkStopped, current_stop, interruptible

_USUAL = 40  # the usual top_k; `prefer_rows` also times the search for so many logits in a whole row
# A pass whose tokens x bytes of weights reach this runs in its own thread, so that Ctrl-C can stop it.
# Such a pass takes 0.1 s on two cores, so the thread costs little.
_LONG_PASS = 1e10


class SlotDecoder(CachedText):
    """The `Decoder` (see algorithm/protocols.py) on one slot of a context."""

    def __init__(
        self, shared: SharedContext, sequence: int, checkpoint_bytes: int, saved: PromptCache
    ) -> None:
        super().__init__(shared, sequence, checkpoint_bytes, saved)
        self.shared, self.capacity, self.chunk = shared, shared.capacity, shared.chunk
        self.rows_max = shared.rows_max
        self._top_k_rows = False  # whether the sampler of this reply needs only top-k logits

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        """Append tokens to the cache; return a pass with rows or top-k logits for the last `rows` tokens.

        Rows are views of llama.cpp's buffer, valid until the next decode of any running slot. After an error the cache
        has the tokens from before the call, or fewer.
        """
        assert 0 <= rows <= min(len(tokens), self.rows_max), f"{rows} rows of {len(tokens)} tokens"
        before, rest = self.length, tokens
        self._check_space(len(tokens))
        if not tokens:
            return ForwardPass(before, tokens)
        found: list[ForwardPass] = []
        try:
            while not isinstance(rest[0], ImageRow):
                most = self._most_tokens()
                # In a shared pass all parts get padding up to the longest one.
                if len(rest) <= max(min(most, WIDEST) if rows and self.shared.batcher else most, rows):
                    break
                head = min(most, len(rest) - rows)
                found.append(self._pass(rest[:head], 0))
                rest = rest[head:]
            last = self._pass(rest, rows)
            return joined([*found, last]) if found else last
        except BaseException:  # also after Ctrl-C, because llama.cpp may have tokens that `self.tokens` lacks
            if self.shared.batcher is None or self.length != before:
                self.recover(before)
            raise

    def top_k_rows(self, logits: int | None) -> None:  # `logits`: how many the sampler needs; None: all
        self._top_k_rows = logits is not None and logits <= self.shared.cut_to

    def prefer_rows(self, tokens: Sequence[int]) -> None:
        """Time passes over `tokens` with top-k logits and with whole rows, and keep the faster kind."""
        seconds = {1: inf, None: inf}
        for logits in [*seconds] * 3 if self.shared.cut_to else []:
            self.top_k_rows(logits)
            began = perf_counter()
            for row in self.decode(tokens, len(tokens)).rows:
                largest(row, _USUAL)
            seconds[logits] = min(seconds[logits], perf_counter() - began)
            self.rollback(0)
        if seconds[None] < seconds[1]:
            self.shared.cut_to = 0

    def _most_tokens(self) -> int:
        pace, batcher = self.shared.pace, self.shared.batcher
        most = pace.tokens(self.chunk) if pace else self.chunk
        return most if batcher is None else batcher.prompt_chunk(self.shared, self.sequence, most)

    def _pass(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        batcher = self.shared.batcher
        if batcher is None:
            if rows and self.shared.cut_to:
                self.become(CUT if self._top_k_rows else 0)
            whole = self._again(tokens, rows) if rows and self._top_k_rows else None
            return self.shared.read([(self, tokens, rows)], whole)[0]
        self.stop = current_stop()
        return batcher.decode(self.shared, Part(self.sequence, tokens, rows))

    def _again(self, tokens: Sequence[int], rows: int) -> Callable[[int], np.ndarray]:
        """Return a function that returns a whole row by its index. The function's first call repeats the pass."""

        @cache
        def read() -> Sequence[Any]:
            self.rollback(self.length - len(tokens))
            self._top_k_rows = False  # in this reply the sampler would probably need whole rows again
            return self.decode(tokens, rows).rows

        return lambda row: read()[row]

    def running(self) -> AbstractContextManager[None]:
        """Mark this slot as running: a pass of other slots waits until this slot wants one too, or is `away`."""
        return batcher.running(self.sequence) if (batcher := self.shared.batcher) else nullcontext()

    def away(self) -> AbstractContextManager[None]:
        return batcher.away(self.sequence) if (batcher := self.shared.batcher) else nullcontext()

    def prefill(
        self, tokens: Sequence[int], cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[ForwardPass]:
        """Append tokens in chunks, without rows, and yield the pass of each chunk. Raises as `decode` does.

        End early if `cancelled()` is true. The cache then has exactly the chunks that were yielded.
        """
        self._check_space(len(tokens))
        done = 0
        try:
            while chunk := next_piece(tokens[done:], self._most_tokens()):
                read = partial(self.decode, chunk, 0)
                is_long = len(chunk) * self.model.size_bytes >= _LONG_PASS
                yield interruptible(read, Stop(), cancelled=cancelled) if is_long else read()
                done += len(chunk)
        except WorkStopped:
            if not cancelled():  # raise, because the caller did not stop the prefill
                raise

    def rollback(self, keep: int) -> None:
        assert 0 <= keep <= self.length, f"cannot keep {keep} of {self.length} tokens"
        self._checkpoints.forget_after(keep)
        if keep == self.length and not self._padding:
            return
        with self.calling:
            if self.step_back(keep):
                return
        what = f"{self.model.name} cannot remove {self.length - keep} rejected draft tokens"
        raise RollbackUnsupported(what, hint="run the model without a draft (--no-draft)")

    def rewind(self, keep: int) -> int:
        """Roll back to `keep` tokens, else to the newest checkpoint, else to 0 tokens; return the length."""
        try:
            self.rollback(keep)
        except RollbackUnsupported:
            with self.calling:
                self.return_to_checkpoint()
        return self.length

    def recall(self, tokens: Sequence[int], *, save: bool = True) -> float:
        self.failure = None  # a new reply prefills the tokens that a failed pass has lost
        began, shared = perf_counter(), common_prefix_length(self.tokens, 0, tokens)
        self.tokens[:shared] = tokens[:shared]  # the same objects are compared 4 times as fast
        stored = found = None
        if len(tokens) - shared >= WORTH_A_COPY:
            with self.calling:
                lent = {slot: slot.lends(tokens) for slot in self.shared.slots if slot is not self}
            other = max(lent, key=lent.__getitem__, default=self)
            most = max(shared, lent.get(other, 0))
            stored = self.prompt_cache.from_disk(
                tokens, most
            )  # the lock is free, so that other slots decode meanwhile
            with self.calling:
                found = stored or self.prompt_cache.take(tokens, most + WORTH_A_COPY)
            if most - shared >= WORTH_A_COPY:
                found = found or other.copied(tokens, shared + WORTH_A_COPY)
        with self.calling:
            self.forget_padding()
            if save and self.length - shared >= WORTH_A_COPY and (copy := self.copy()):
                self.prompt_cache.save(copy)
            restored = found is not None and self.replace(found)
            if restored:  # the restored state has only ids of tokens, so take the images from `tokens`
                most = common_prefix_length(self.tokens, 0, tokens)
                self.tokens[:most] = tokens[:most]
                self.place_images(0)
        return perf_counter() - began if stored and restored else 0.0

    def _check_space(self, count: int) -> None:
        if self.length + count > self.capacity:
            what = f"{self.length + count} tokens do not fit into a context of {self.capacity}"
            raise ContextFull(what, hint="shorten the prompt or use a longer context (--context)")


class Context(SlotDecoder):
    """A context of llama.cpp, and the decoder of its first slot; `slots` has the decoders of all slots."""

    def __init__(
        self,
        model: Model,
        load: Load | None = None,
        *,
        checkpoint_bytes: int = 0,
        saved_bytes: int = 0,
        batcher: Batcher | None = None,
        **changes: Any,
    ) -> None:
        """`checkpoint_bytes`: budget of all checkpoints. `saved_bytes`: budget of the PromptCache.

        `changes`: fields of `load` to replace, or the fields of a new `Load` if there is none.
        """
        load = replace(load, **changes) if load else Load(**changes)
        shared = SharedContext(model, load, batcher)
        # A remote model has no prompt cache, because its states would be copied over a network.
        saved = PromptCache(0 if model.remote else saved_bytes)
        more = checkpoint_bytes // load.slots, saved
        super().__init__(shared, 0, *more)
        others = (SlotDecoder(shared, number, *more) for number in range(1, load.slots))
        self.slots: tuple[SlotDecoder, ...] = (self, *others)
        shared.slots = self.slots
