"""Decode several replies in one target pass. Each reply runs in a thread of its own, and one thread decodes for all."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import numpy as np

from localspec.errors import LocalspecError
from localspec.sampler.passes import ForwardPass

PAUSE = 0.2  # longest wait for a part after its expected time, as a multiple of a plain pass's time
PROMPT_SHARE = 2.5  # prompt tokens may add at most this many times a plain pass's time to a shared pass
FIRST_CHUNK = 6  # maximum prompt tokens in a shared pass while the time of a prompt token is unknown
LEAST_CHUNK = 4  # a shared pass may always have this many prompt tokens, however slow they are
REMEMBERED = 32  # number of latest passes without prompt tokens, of which the quickest estimates a plain pass
FORGOTTEN = 256  # the time of a pass width is forgotten after this many passes of other widths
NEWEST = 0.3  # weight of the newest measurement in a running average


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens that one slot adds to a pass. Each of the last `rows` tokens needs a row of logits."""

    slot: int
    tokens: Sequence[int]
    rows: int
    alone: bool = False  # whether the part needs a pass without parts of other slots


class SharedDecoder(Protocol):
    """A model whose KV cache contains several sequences, one for each slot."""

    def decode(self, parts: Sequence[Part]) -> Sequence[ForwardPass]:
        """Run one pass over at most one part of each slot. If the pass fails, the KV cache contains none of its tokens.

        Rows of logits are views, valid until the next pass; hidden rows are copies.
        """


@dataclass(slots=True)
class RunningReply:
    since: float  # time when the reply started, or when its latest pass ended
    arrived: float = 0.0  # time when its newest part was ready
    waited_seconds: float = 0.0  # time that its newest part waited for prompts of other replies
    gap_seconds: float = 0.0  # usual time from the end of a pass to the reply's next part
    width: int = 1  # number of tokens in its newest part that is not prefill
    reads_prompt: bool = True
    alone: bool = False


class PassSeconds:
    """The usual time of a pass by its width, and the usual time that a prompt token adds to it."""

    def __init__(self) -> None:
        # By pass width: usual seconds without prompt tokens, and the value of `_count` at the latest pass.
        self._passes: dict[int, tuple[float, int]] = {}
        self._count = 0  # number of passes without prompt tokens
        self._latest: deque[float] = deque(maxlen=REMEMBERED)
        self._token_seconds = 0.0  # usual time that a prompt token adds to a pass

    @property
    def plain_seconds(self) -> float:
        return min(self._latest, default=0.0)

    def learn(self, parts: Sequence[Part], width: int, seconds: float) -> None:
        """Learn the time of a pass over these parts. `width`: the number of tokens in the pass, with padding."""
        prompt = sum(len(part.tokens) for part in parts if not part.rows)
        if not prompt:
            self._latest.append(seconds)
            self._count += 1
            usual, _ = self._passes.get(width, (None, 0))
            self._passes[width] = mixed(usual, seconds), self._count
            oldest = self._count - FORGOTTEN
            self._passes = {each: known for each, known in self._passes.items() if known[1] > oldest}
            return
        own = self.plain_seconds if any(part.rows for part in parts) else 0.0
        self._token_seconds = mixed(self._token_seconds or None, max(seconds - own, 0.0) / prompt)

    def chunk(self) -> int:
        """Return the largest number of prompt tokens in a pass that delays other replies."""
        if not (self._latest and self._token_seconds):
            return FIRST_CHUNK
        return max(int(PROMPT_SHARE * self.plain_seconds / self._token_seconds), LEAST_CHUNK)

    def saved(self, widths: Sequence[int], width: int) -> float:
        """Return the seconds saved if a part of `width` tokens joins a pass over parts of `widths` tokens."""
        here = len(widths) * max(widths)
        return max(self._of(here) + self._of(width) - self._of((len(widths) + 1) * max(*widths, width)), 0.0)

    def _of(self, width: int) -> float:
        """Return the usual seconds of a pass, or those of the widest measured pass if `width` is larger."""
        known = sorted(self._passes)
        return float(np.interp(width, known, [self._passes[each][0] for each in known])) if known else 0.0


def mixed(usual: float | None, newest: float) -> float:
    return newest if usual is None else usual + NEWEST * (newest - usual)


class Batcher:
    """A decoder for the threads of several replies: it joins their parts into one pass.

    If no thread decodes, a thread with a part waits briefly for other replies, then decodes for all of them. Rows are
    views of one buffer, so the next pass waits until every slot has released its rows.
    """

    def __init__(self, shared: SharedDecoder, clock: Callable[[], float] = perf_counter) -> None:
        self._shared = shared
        self._clock = clock
        self._changed = threading.Condition()  # guards the fields below
        self._slots: dict[int, RunningReply] = {}  # running replies, by slot
        self._waiting: dict[int, Part] = {}  # parts that wait for a pass, by slot, the oldest first
        self._flying: frozenset[int] = frozenset()  # slots whose parts are in the present pass
        self._found: dict[int, ForwardPass] = {}  # results of passes, by slot, until a thread takes them
        self._reading: set[int] = set()  # slots that have not released their rows of the last pass
        self._led = False  # whether a thread is in `_lead`: it waits for other parts, or decodes
        self.pass_seconds = PassSeconds()

    @property
    def replies(self) -> int:
        return len(self._slots)

    def join(self, slot: int) -> None:
        with self._changed:
            assert slot not in self._slots, f"slot {slot} has a reply"
            self._slots[slot] = RunningReply(self._clock())

    def leave(self, slot: int) -> None:
        """End the reply on this slot; idempotent."""
        with self._changed:
            self._slots.pop(slot, None)
            self._reading.discard(slot)
            self._changed.notify_all()

    @contextmanager
    def running(self, slot: int) -> Iterator[None]:
        self.join(slot)
        try:
            yield
        finally:
            self.leave(slot)

    def release(self, slot: int) -> None:
        """Allow the next pass to overwrite the rows of this slot; idempotent."""
        with self._changed:
            if slot in self._reading:
                self._reading.remove(slot)
                self._changed.notify_all()

    def prompt_chunk(self, slot: int, usual: int) -> int:
        """Return the largest number of prompt tokens in a pass: `usual`, or less while another reply is generated."""
        with self._changed:
            writing = (not other.reads_prompt for number, other in self._slots.items() if number != slot)
            return min(usual, self.pass_seconds.chunk()) if any(writing) else usual

    def decode(self, part: Part) -> ForwardPass:
        """Decode a part in one pass with the ready parts of other slots. Raises the errors of that pass."""
        with self._changed:
            self._arrive(part)
            try:
                while part.slot not in self._found:
                    if self._led or not self._may_lead(part.slot):
                        self._changed.wait()
                    else:
                        self._lead(part.slot)
            except BaseException:  # withdraw the part, also after Ctrl-C
                while part.slot in self._flying:
                    self._changed.wait()
                self._waiting.pop(part.slot, None)
                self._found.pop(part.slot, None)
                self.release(part.slot)
                self._changed.notify_all()
                raise
            return self._found.pop(part.slot)

    def _arrive(self, part: Part) -> None:
        self._reading.discard(part.slot)
        self._waiting[part.slot] = part
        if slot := self._slots.get(part.slot):
            slot.arrived, slot.waited_seconds = self._clock(), 0.0
            slot.gap_seconds = mixed(slot.gap_seconds or None, slot.arrived - slot.since)
            slot.reads_prompt, slot.alone, slot.width = not part.rows, part.alone, part.rows or slot.width
        self._changed.notify_all()

    def _may_lead(self, slot: int) -> bool:
        """Return whether the next pass, which always decodes the oldest part, can include this slot's part."""
        oldest = next(iter(self._waiting.values()))
        return oldest.slot == slot if oldest.alone else not self._waiting[slot].alone

    def _lead(self, slot: int) -> None:
        """Wait briefly for parts of other slots, then decode this slot's part and theirs in one pass."""
        self._led = True
        try:
            self._wait()
            own = self._waiting[slot]
            parts = [own] if own.alone else self._joined(own)
            for part in parts:
                del self._waiting[part.slot]
            self._flying = frozenset(part.slot for part in parts)
            self._fly(parts, slot)
        finally:
            self._led, self._flying = False, frozenset()
            self._changed.notify_all()

    def _joined(self, own: Part) -> list[Part]:
        """Return the parts of the next pass. Several prompts share it only if they have at most `chunk()` tokens."""
        parts, read = [own], 0 if own.rows else len(own.tokens)
        for part in self._waiting.values():
            tokens = 0 if part.rows else len(part.tokens)
            fits = not tokens or not read or read + tokens <= self.pass_seconds.chunk()
            if part is not own and not part.alone and fits:
                parts.append(part)
                read += tokens
        return parts

    def _fly(self, parts: Sequence[Part], slot: int) -> None:
        """Run one pass over the parts. If a shared pass fails, each part is tried again in its own pass."""
        began = self._clock()
        self._changed.release()
        try:
            try:
                found = self._shared.decode(parts)
            finally:
                self._changed.acquire()
        except BaseException as failure:
            again = isinstance(failure, LocalspecError) and len(parts) > 1
            for part in parts:
                if again or part.slot != slot:
                    self._waiting[part.slot] = replace(part, alone=True)
            if again:
                return
            raise
        now, rows = self._clock(), any(part.rows for part in parts)
        replies = sum(bool(part.rows) for part in parts)  # parts of prompts have no rows, and do not count
        width = max(*(one.pass_width for one in found), sum(len(part.tokens) for part in parts if part.rows))
        self.pass_seconds.learn(parts, width, now - began)
        read = began + max(one.waited_seconds for one in found) if rows else now
        # The prompts in this pass delayed the replies in it, and the replies that wait for the next pass.
        for part in (*parts, *self._waiting.values()):
            if part.rows and (reply := self._slots.get(part.slot)):
                reply.waited_seconds += max(read - max(began, reply.arrived), 0.0)
        for part, one in zip(parts, found, strict=True):
            here = self._slots.get(part.slot)
            waited = here.waited_seconds if here else 0.0
            self._found[part.slot] = replace(
                one, replies=max(replies, 1), pass_width=width, waited_seconds=waited
            )
            if one.rows:
                self._reading.add(part.slot)
            if here:
                here.since = now

    def _wait(self) -> None:
        began = self._clock()
        while True:
            if self._reading:
                self._changed.wait()
            elif (seconds := self._worth_waiting(began)) > 0:
                self._changed.wait(seconds)
            else:
                return

    def _worth_waiting(self, began: float) -> float:
        """Return the seconds to wait for parts that are expected soon; 0 or less if none is expected."""
        ready = [part for part in self._waiting.values() if not part.alone]
        if len(ready) < len(self._waiting):
            return 0.0
        usual, widths = self.pass_seconds.plain_seconds, [part.rows or 1 for part in ready]
        until = began
        for number, slot in self._slots.items():
            if number in self._waiting or slot.alone:
                continue
            expected = slot.since + slot.gap_seconds
            last = began + self.pass_seconds.saved(widths, slot.width)
            if began - usual <= expected <= last:
                until = max(until, min(max(expected, began) + PAUSE * usual, last))
        return until - self._clock()
