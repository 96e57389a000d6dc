"""A loaded pair as sessions use it; `localspec.loading.load` makes one."""

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Protocol
from weakref import WeakMethod

from localspec.algorithm.protocols import Decoder, Drafter, Rule, Strategy, Vocabulary
from localspec.chat.request import Request
from localspec.errors import BadSetting
from localspec.prompt.images import ReadImage
from localspec.prompt.template import ChatTemplate
from localspec.sampler.passes import common_prefix_length
from localspec.sampler.sampling import Sampling

_DEMO = "`localspec demo` shows the gain from drafting."
DEMO_OFF = f"Drafting is off: the demo model is so small that drafting costs more than it saves. {_DEMO}"
NO_DRAFT = "without a draft model, text is drafted only where it repeats itself and that saves time"
DEMO_MODEL = f"The demo pair is tiny: its speed says nothing about real pairs. {_DEMO}"


class StrategyMaker(Protocol):
    def strategy(
        self,
        rule: Rule,
        request: Request,
        predicted: Sequence[int] = (),
        spelled: Sequence[Sequence[int]] = (),
    ) -> Strategy:
        """Make a reply's drafting strategy from the caller's prediction, and from more texts to copy (`spelled`)."""

    def store(self) -> None:
        """Store the measured costs and acceptance rates for the next load."""

    def calibrate(self, text: Sequence[int], budget_seconds: float, stop: Callable[[], bool]) -> None:
        """Measure the cost of passes over `text`, unless the cost is known. End early if `stop` returns true."""


class ThreadCount(Protocol):
    @property
    def contended(self) -> bool:
        """Whether other programs use the processor on which a model runs."""

    def reply(self) -> AbstractContextManager[None]:
        """Return a context manager in which one reply runs."""

    def settle(self) -> str:
        """Fix the thread count until no reply runs. Return a notice if the count has changed since the last call."""

    def keeping(self) -> AbstractContextManager[None]:
        """Return a context manager with a constant thread count, which texts to be compared need."""


@dataclass(frozen=True, eq=False)
class Slot:
    target: Decoder
    drafters: Sequence[Drafter]  # the drafters that run a model
    drafting: StrategyMaker
    running: Callable[[], AbstractContextManager[object]] = nullcontext  # entered while cycles run
    away: Callable[[], AbstractContextManager[object]] = nullcontext  # entered while cycles wait for a reader


REST_SECONDS = 2.0  # after this idle time, prompt caches are stored on disk
# If the replies of one thread hold all slots and make no progress for this long, the thread waits for itself.
STALLED_SECONDS = 10.0
_LOOK_SECONDS = 0.05  # a reply that waits for a slot checks for cancellation at this interval


class Slots:
    def __init__(self, slots: Iterable[Slot], *, stores: bool = False) -> None:
        self.all = tuple(slots)
        # A lock for the fields below. A session also takes it to open, to close, or to use the template or vocabulary.
        self.changed = threading.Condition()
        # For each claimed slot, the thread that began its reply; None for work that is no reply and needs all slots.
        self._claimed: dict[Slot, int | None] = {}
        self.awaited = 0  # number of replies that wait for a slot
        self.sent: dict[Slot, int] = {}  # number of tokens before the typed but unsent text of each slot
        self._stores = stores  # whether prompt caches are stored on disk
        self._rest: threading.Timer | None = None  # stores prompt caches REST_SECONDS after the last reply
        self._process = os.getpid()
        if stores:
            atexit.register(_call, WeakMethod(self._close_at_end))

    @contextmanager
    def claimed(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Iterator[Slot | None]:
        if (slot := self._wait(prompt, cancelled)) is None:
            yield None
            return
        try:
            yield slot
        finally:
            self._give_back([slot])
            self._begin_rest()

    @contextmanager
    def unused(self, ends: Callable[[], bool] = lambda: True) -> Iterator[Slot | None]:
        """Claim all slots and yield the first; yield None if replies still run when `ends()` returns true."""
        with self.changed:
            while self._claimed and not ends():
                self.changed.wait(_LOOK_SECONDS)
            taken = () if self._claimed else self.all
            self._claimed |= dict.fromkeys(taken)
        try:
            yield self.all[0] if taken else None
        finally:
            self._give_back(taken)

    def unsaved(self) -> bool:
        return self._stores and any(slot.target.wants_storing() for slot in self.all)

    def close(self) -> None:
        """Store prompt caches for the last time. No reply may be running."""
        with self.changed:
            while None in self._claimed.values():
                self.changed.wait(_LOOK_SECONDS)
            stores, self._stores = self._stores, False
            if self._rest:
                self._rest.cancel()
            for slot in self.all if stores else ():
                self.forget_typed(slot)
                slot.target.store()

    def _begin_rest(self) -> None:
        with self.changed:
            if self._rest:
                self._rest.cancel()
            if not self._stores:
                return
            # The timer has a weak reference, because it must not keep an unused pair in memory.
            self._rest = threading.Timer(REST_SECONDS, _call, (WeakMethod(self.store),))
            self._rest.daemon = True
            with suppress(RuntimeError):  # while Python ends, no thread starts, and `close` stores the caches
                self._rest.start()

    def store(self) -> None:
        for slot in self.all:
            with self.unused() as free:
                if free is None:  # a reply runs, or costs are measured
                    self._begin_rest()
                    return
                if self._stores:
                    self.forget_typed(slot)
                    slot.target.store()

    def forget_typed(self, slot: Slot) -> None:
        """Remove a text that is typed but not sent, because no file may contain it."""
        if (length := self.sent.pop(slot, None)) is not None and length < slot.target.length:
            slot.target.rewind(length)

    def _close_at_end(self) -> None:
        """Store the prompt caches when Python ends, unless a reply still runs."""
        # A child of fork() must not wait for locks: if another thread of the parent held one, it is never freed.
        if os.getpid() == self._process:
            with self.changed:
                if not self._claimed:
                    self.close()

    def _wait(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Slot | None:
        with self.changed:
            self.awaited += 1
            try:
                lengths, since = None, 0.0
                while len(self._claimed) == len(self.all):
                    if cancelled():
                        return None
                    before, lengths = lengths, [slot.target.length for slot in self.all]
                    since = since if lengths == before else monotonic()
                    own = set(self._claimed.values()) == {threading.get_ident()}
                    if own and monotonic() - since >= STALLED_SECONDS:
                        what = "this thread reads other replies, which use all slots"
                        raise BadSetting(what, hint="read these replies to the end, or close() them")
                    self.changed.wait(_LOOK_SECONDS)
            finally:
                self.awaited -= 1
            if self._rest:
                self._rest.cancel()
            slot = best_slot((each for each in self.all if each not in self._claimed), prompt)
            self._claimed[slot] = threading.get_ident()
            return slot

    def _give_back(self, slots: Sequence[Slot]) -> None:
        with self.changed:
            for slot in slots:
                del self._claimed[slot]
            self.changed.notify_all()


def best_slot(slots: Iterable[Slot], prompt: Sequence[int]) -> Slot:
    """Return the slot whose text has the longest common prefix with a prompt; if no text has one, the emptiest slot."""

    def worth(slot: Slot) -> tuple[int, int]:
        cached, common = len(slot.target.tokens), common_prefix_length(slot.target.tokens, 0, prompt)
        return (common, 0) if common >= min(256, cached / 2 + 1) else (0, -cached)

    several = tuple(slots)
    return max(several, key=worth) if len(several) > 1 else several[0]


def _call(method: "WeakMethod[Callable[[], None]]") -> None:
    if (found := method()) is not None:
        found()


@dataclass(frozen=True, slots=True)
class LoadedPair:
    name: str
    target_name: str
    draft_name: str  # "" without a draft model
    slots: Slots
    rollback_limit: int | None  # the target can roll back this many draft tokens; None: any number
    widest_batch: int  # largest number of tokens in a verify batch
    vocabulary: Vocabulary
    template: ChatTemplate
    sampling: Sampling  # the defaults in the model file
    threads: ThreadCount
    notices: tuple[str, ...]  # notices for the first reply
    close: Callable[[], None]
    is_demo: bool = False
    read_image: ReadImage | None = None  # None: the model reads no images
    runs_ahead: bool = False  # whether a cycle runs ahead of the reader, because a device computes
    trained_context: int | None = None  # in tokens; None: unknown
    reads_ahead: bool = False  # whether the next prompt is read ahead after a reply
    # Measures costs for later loads while the pair is idle, until the function that it gets returns true.
    when_idle: Callable[[Callable[[], bool]], object] = bool

    @property
    def target(self) -> Decoder:
        return self.slots.all[0].target

    @property
    def drafters(self) -> Sequence[Drafter]:
        return self.slots.all[0].drafters

    @property
    def drafting(self) -> StrategyMaker:
        return self.slots.all[0].drafting
