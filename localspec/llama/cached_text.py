"""The tokens of one slot in the KV cache: roll back, take checkpoints, copy and restore the state."""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition
from typing import Any, Protocol

import numpy as np

from localspec.algorithm.images import ImageRow, chunks_of
from localspec.caches.prompt_cache import Checkpoint, PromptCache, PromptState
from localspec.errors import LocalspecError
from localspec.llama.cache import Cache
from localspec.llama.library import lib
from localspec.llama.threads import Threads
from localspec.sampler.passes import common_prefix_length
from localspec.stopping import Closing, Stop

_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # copy only the part that cannot be rolled back
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class Checkpoints:
    """The checkpoints of one sequence, together at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: list[Checkpoint] = []  # checkpoints, the shortest first

    @property
    def bytes(self) -> int:
        return sum(len(checkpoint.state) for checkpoint in self._kept)

    def restore_newest(self, context: Any, sequence: int = 0) -> int:
        """Restore the newest checkpoint and return its length. Return 0 after a failure."""
        newest = self._kept[-1] if self._kept else None
        restored = newest and restore_state(context, newest.state, sequence, flags=_PARTIAL)
        return newest.length if newest and restored else 0

    def take(self, context: Any, length: int, sequence: int = 0, *, lasting: bool) -> None:
        """Add a checkpoint of the state after `length` tokens, and drop all checkpoints that are not lasting."""
        self._kept = [kept for kept in self._kept if kept.lasting and kept.length < length]
        size = state_bytes(context, sequence, _PARTIAL)
        while size <= self._budget < self.bytes + size:  # drop checkpoints until the new one fits
            del self._kept[1 if len(self._kept) > 2 else 0]
        state = state_of(context, sequence, most_bytes=self._budget, flags=_PARTIAL)
        if state is not None:
            self._kept.append(Checkpoint(length, state, lasting))

    @property
    def lasting(self) -> list[Checkpoint]:
        return [kept for kept in self._kept if kept.lasting]

    def become(self, kept: Iterable[Checkpoint]) -> None:
        self._kept = list(kept)

    def forget_after(self, length: int) -> None:
        self._kept = [kept for kept in self._kept if kept.length <= length]


def state_bytes(context: Any, sequence: int, flags: int = 0) -> int:
    return int(lib.llama_state_seq_get_size_ext(context, sequence, flags))


def state_of(
    context: Any, sequence: int = 0, *, most_bytes: int | None = None, flags: int = 0
) -> np.ndarray | None:
    """Return a copy of a sequence's state; None if it exceeds `most_bytes` or llama.cpp cannot copy it."""
    size = state_bytes(context, sequence, flags)
    if not size or (most_bytes is not None and size > most_bytes):
        return None
    state = np.empty(size, dtype=np.uint8)
    copied = lib.llama_state_seq_get_data_ext(context, state.ctypes.data_as(_BYTES), size, sequence, flags)
    return state if copied == size else None


def restore_state(context: Any, state: np.ndarray, sequence: int = 0, *, flags: int = 0) -> bool:
    data = state.ctypes.data_as(_BYTES)
    return bool(lib.llama_state_seq_set_data_ext(context, data, len(state), sequence, flags))


class HeadState(Protocol):
    """The state of a prediction head after the tokens in the target's KV cache."""

    works: bool  # whether the head reads or drafts now

    def saved(self) -> Any: ...  # returns a copy of the state, or None if llama.cpp cannot copy it

    def restore(self, saved: Any) -> None: ...  # accepts a copy from `saved`, or its bytes from the disk


# A slot is copied if this saves the prefill of 1 / _WORTH of its tokens; a copy can take 1/10 of a prefill's time.
_WORTH = 8
_LOOK_SECONDS = 0.01  # longest wait before the next check whether a head still works


class CachedText(Closing):
    def __init__(self, cache: Cache, sequence: int, checkpoint_bytes: int, saved: PromptCache) -> None:
        self.cache, self.model, self.sequence = cache, cache.model, sequence
        self.tokens: list[int] = []  # the slot's tokens in the KV cache, in order
        self.conversation = ""  # name of the stored conversation with these tokens; "": none
        self.threads = Threads(cache.threads.usual)
        self.busy_seconds = 0.0  # total seconds of passes with tokens of this slot
        self.late = False  # whether `decode` may return before a device has computed the rows
        self.stop: Stop | None = None  # the decoding thread's Stop; only passes without other slots check it
        self.prompt_cache = saved  # the prompt cache that all slots share
        self.head_state: HeadState | None = None  # the slot's head; copies of the slot include its state
        self._checkpoints = Checkpoints(checkpoint_bytes)
        self._last_width = 0  # number of tokens in the last batch; a recurrent state can roll back only these
        self._padding = 0  # number of padding tokens in the cache after `tokens`
        self._kept = 0  # number of tokens in the sequence `Cache.spare`
        self.failure: LocalspecError | None = None  # error that lost decoded tokens of the reply
        # By the index after an image: how many more tokens the text has up to there than positions and placeholders.
        self._surplus: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        self.cache.close()

    @property
    def calling(self) -> Condition:
        return self.cache.calling

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def rollback_limit(self) -> int | None:
        """The maximum number of tokens to roll back after a batch; None: all tokens of the batch."""
        return None if self.model.can_roll_back else self.cache.snapshots

    @property
    def needs_checkpoints(self) -> bool:
        return bool(self.cache.window) or not self.model.can_roll_back

    def position(self, count: int) -> int:
        """Return llama.cpp's position after the first `count` tokens. With M-RoPE, images take fewer positions."""
        return count - self._surplus_before(count)[0]

    def text_shift(self) -> int:
        """Return llama.cpp's next position minus the number of tokens in the text that drafters see."""
        positions, texts = self._surplus_before(self.length)
        return texts - positions

    def _surplus_before(self, count: int) -> tuple[int, int]:
        return max((more for end, more in self._surplus.items() if end <= count), default=(0, 0))

    def place_images(self, start: int) -> None:
        """Record the positions of the images among the tokens from `start` on."""
        self._surplus = {end: more for end, more in self._surplus.items() if end <= start}
        for index, chunk in chunks_of(self.tokens[start:]):
            end = start + index + chunk.count
            positions, texts = self._surplus_before(end)
            more = positions + chunk.count - chunk.positions, texts + chunk.count - 1
            self._surplus[end] = more

    def took(self, tokens: Sequence[int], padding: int, seconds: float) -> None:
        self.tokens.extend(tokens)
        if self._surplus or isinstance(tokens[0], ImageRow):
            self.place_images(self.length - len(tokens))
        self._last_width, self._padding = len(tokens) + padding, padding
        self.busy_seconds += seconds

    def forget_padding(self) -> None:
        """Remove padding from llama.cpp's cache."""
        if self._padding:
            assert self._forget(self.length), "padding can be removed"
            self._padding = 0  # set after the removal, because Ctrl-C may interrupt the removal

    def become(self, sequence: int) -> None:
        """Move the slot's tokens to another sequence, without copying their cells."""
        if sequence != (former := self.sequence):
            with self.calling:
                self.cache.copy_sequence(former, sequence)
                self.sequence = sequence
                lib.llama_memory_seq_rm(self.cache.memory, former, -1, -1)

    def lends(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` need no prefill in a copy of this slot; 0 if copying costs too much."""
        held = list(self.tokens)  # a copy, because the slot's own thread may shorten `tokens` meanwhile
        shared = common_prefix_length(held, 0, tokens)
        if self.needs_checkpoints and shared < len(held):
            kept = [checkpoint.length for checkpoint in self._checkpoints.lasting]
            shared = max((length for length in kept if length <= shared), default=0)
        return shared if len(held) <= _WORTH * shared else 0

    def copied(self, tokens: Sequence[int], at_least: int) -> PromptState | None:
        """Return a copy of the slot's state; None if `lends(tokens)` is now less than `at_least`."""
        with self.calling:
            while self.head_state and self.head_state.works:
                self.calling.wait(_LOOK_SECONDS)
            return self.copy() if self.lends(tokens) >= at_least else None

    def copy(self) -> PromptState | None:
        """Return a copy of the slot's state; None if it is larger than the budget of the prompt cache."""
        kept = self._checkpoints
        most = self.prompt_cache.budget - kept.bytes
        if (state := state_of(self.cache.handle, self.sequence, most_bytes=most)) is None:
            return None
        beside = self.head_state and self.head_state.saved()
        # Store ids only: a row of an image would keep the whole image in memory, and no budget counts it.
        ids = list(map(int, self.tokens))
        return PromptState(ids, state, kept.lasting, beside, self._padding, self.conversation)

    def replace(self, found: PromptState) -> bool:
        """Replace the slot's state by a copied one. Return False after a failure; the slot is then empty."""
        with self._cleared_on_failure():
            self.clear()
            if not restore_state(self.cache.handle, found.state, self.sequence):
                self.clear()
                return False
            self.tokens += found.tokens
            self.place_images(0)
            self._padding = found.padding
            self._checkpoints.become(found.checkpoints)
            if self.head_state and found.head_state is not None:
                self.head_state.restore(found.head_state)
            return True

    @contextmanager
    def _cleared_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # also after Ctrl-C
            self.clear()
            raise

    def wants_storing(self) -> bool:
        return self.prompt_cache.wants(self.tokens, self.conversation)

    def store(self) -> None:
        with self.calling:
            self.forget_padding()
            size = state_bytes(self.cache.handle, self.sequence)
            self.prompt_cache.store(self.tokens, size, self.conversation, self.copy)

    def checkpoint(self, *, lasting: bool) -> None:
        """Take a checkpoint if the model needs one. `lasting`: whether this one stays after the next one."""
        if self.length and (self.needs_checkpoints if lasting else not self.model.can_roll_back):
            with self.calling:
                self.forget_padding()
                self.forget_kept(0)
                if self.cache.spare and not lasting:  # checkpoint in the device's memory
                    self.cache.copy_sequence(self.sequence, self.cache.spare)
                    self._kept = self.length
                    return
                self._checkpoints.take(self.cache.handle, self.length, self.sequence, lasting=lasting)

    def step_back(self, keep: int) -> bool:
        """Remove all but the first `keep` tokens; return False if the cache cannot do that."""
        dropped = self.tokens[keep:]
        self.forget_kept(keep)
        if not keep or self._can_step_back(keep, len(dropped) + self._padding):
            # Shorten `tokens` first: if Ctrl-C comes in between, the next rollback still shortens llama.cpp's cache.
            del self.tokens[keep:]
            if self._forget(keep):
                self._padding = 0
                return True
            self.tokens += dropped
        return False

    def return_to_checkpoint(self) -> None:
        """Step back to the newest checkpoint; if that fails, clear the cache."""
        with self._cleared_on_failure():
            if length := self._kept:
                self.cache.copy_sequence(self.cache.spare, self.sequence)
            else:
                length = self._checkpoints.restore_newest(self.cache.handle, self.sequence)
                if not (length and self._forget(length)):
                    self.clear()
            self._last_width = self._padding = 0  # no rollback: snapshots are of the old state
            del self.tokens[length:]

    def recover(self, length: int) -> Sequence[int]:
        """After a failed decode, step back to `length` tokens. If the cache has fewer left, return the missing ones."""
        text = self.tokens[:length]
        with self.calling:
            lib.llama_synchronize(self.cache.handle)
            size = lib.llama_memory_seq_pos_max(self.cache.memory, self.sequence) + 1
            del self.tokens[length:]
            behind = abs(size - self.position(length))
            # llama.cpp makes snapshots during a batch, so none has the state before the batch.
            self._last_width = self._padding = 0
            possible = not length or self._can_step_back(length, behind)
            if not (possible and self._forget(length)):
                self.return_to_checkpoint()
        return text[self.length :]

    def forget_kept(self, length: int) -> None:
        """Clear the spare sequence if it has more than the `length` tokens that the slot still has."""
        if self._kept > length:
            self._kept = 0
            lib.llama_memory_seq_rm(self.cache.memory, self.cache.spare, -1, -1)

    def clear(self) -> None:
        self._kept = self._last_width = self._padding = 0
        if self.cache.slot_count > 1:
            lib.llama_memory_seq_rm(self.cache.memory, self.sequence, -1, -1)
        else:
            lib.llama_memory_clear(self.cache.memory, True)
        self._checkpoints.forget_after(0)
        self.tokens.clear()

    def _forget(self, start: int) -> bool:  # returns whether llama.cpp could remove the tokens
        return bool(lib.llama_memory_seq_rm(self.cache.memory, self.sequence, self.position(start), -1))

    def _can_step_back(self, keep: int, dropped: int) -> bool:
        if not self.model.can_roll_back:
            # llama.cpp does not check whether its snapshots are those of the last batch, so check it here.
            return dropped <= max(0, min(self.cache.snapshots, self._last_width - 1))
        # The cache must still have all tokens of the next token's sliding window.
        window, memory, place = self.cache.window, self.cache.memory, self.position(keep)
        return not window or lib.llama_memory_seq_pos_min(memory, self.sequence) <= max(0, place + 1 - window)
