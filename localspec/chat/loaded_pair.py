"""A loaded pair, for conversations; `localspec.models.load` makes it."""

import atexit
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from weakref import ref

from localspec.algorithm.protocols import Decoder, Drafter, Rule, Strategy, Vocabulary
from localspec.chat.options import Request
from localspec.chat.template import ChatTemplate
from localspec.sampler.passes import standing
from localspec.sampler.sampling import Sampling

TOY_OFF = (
    "Drafting is off: a pass of this toy is shorter than a guess. `localspec demo` shows what drafting gains."
)
TOY = "This demo pair is a toy: its speed says nothing about real pairs. `localspec demo` shows what drafting gains."


class StrategyMaker(Protocol):
    """Makes the strategy of each reply, and keeps what drafting learns between replies."""

    seeds_keep_threads: bool  # whether a reply with a seed decodes with the usual number of threads

    def keep_threads(self) -> None:
        """Until the next reply every pass has the usual number of threads."""

    @property
    def crowded(self) -> bool:
        """Whether other programs keep the processor busy that a model is on."""

    def strategy(self, rule: Rule, request: Request, predicted: Sequence[int] = ()) -> Strategy:
        """The drafting strategy of this reply; `predicted`: tokens that the caller expects."""

    def store(self) -> None:
        """Store costs and acceptance for the next run."""

    def calibrate(self, text: Sequence[int], budget_seconds: float, stop: Callable[[], bool]) -> None:
        """Measure the cost of batches of these tokens, unless it is known or `stop` turns true."""


@dataclass(frozen=True, eq=False)
class Lane:
    """A place for one reply at a time: a sequence of the target, and its drafters."""

    target: Decoder
    drafters: Sequence[Drafter]  # those that run models, and live as long as the target
    drafting: StrategyMaker
    running: Callable[[], AbstractContextManager[object]] = nullcontext  # surrounds a reply


REST_SECONDS = 2.0  # without a reply, before texts are copied for the disk
_LOOK_SECONDS = 0.05  # between two looks whether a waiting reply was cancelled


_MUCH = 256  # tokens: reading fewer again takes about as long as copying a state


def _worth(lane: Lane, prompt: Sequence[int]) -> tuple[int, int]:
    """The larger, the better a lane suits a prompt: by the common beginning, else by how little would be forgotten."""
    held = len(lane.target.tokens)
    common = standing(lane.target.tokens, 0, prompt)
    return (common, 0) if common >= min(_MUCH, held / 2 + 1) else (0, -held)


class Lanes:
    """The lanes of a pair; each reply claims one."""

    def __init__(self, lanes: Iterable[Lane], *, stores: bool = False) -> None:
        """`stores`: texts go to the disk."""
        self.all = tuple(lanes)
        self._free = list(self.all)
        self._changed = threading.Condition()
        self._stores = stores
        self._rest: threading.Timer | None = None  # until texts are copied, after the last reply
        self._storing = threading.Lock()
        if stores:
            atexit.register(_close, ref(self))

    @contextmanager
    def claimed(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Iterator[Lane | None]:
        """The free lane that suits the prompt best, once one is free.

        None if the reply was cancelled before.
        """
        lane = self._wait(prompt, cancelled)
        try:
            if lane is None:
                yield None
            else:
                with lane.running():
                    yield lane
        finally:
            if lane is not None:
                self._give_back([lane])
                self._begin_rest()

    @contextmanager
    def unused(self) -> Iterator[Lane | None]:
        """The first lane, while no reply runs; None if one does."""
        with self._changed:
            taken, self._free = (self._free, []) if len(self._free) == len(self.all) else ([], self._free)
        try:
            yield self.all[0] if taken else None
        finally:
            self._give_back(taken)

    def unsaved(self) -> bool:
        """Whether a text is worth storing that is not on the disk yet. No reply runs any more."""
        with self._storing:
            return self._stores and any(lane.target.wants_storing() for lane in self.all)

    def close(self) -> None:
        """Copy what is worth storing; they are written beside. No reply runs any more."""
        with self._storing:
            stores, self._stores = self._stores, False
            if self._rest:
                self._rest.cancel()
            for lane in self.all if stores else ():
                lane.target.store(resting=False)

    def _begin_rest(self) -> None:
        """Store texts if no reply begins soon."""
        with self._changed:
            if self._rest:
                self._rest.cancel()
            if not self._stores:
                return
            self._rest = threading.Timer(REST_SECONDS, self._store)
            self._rest.daemon = True
            with suppress(RuntimeError):  # Python ends and starts no thread any more: `close` stores
                self._rest.start()

    def _store(self) -> None:
        for lane in self.all:
            with self._storing, self.unused() as free:
                if free is None:  # a reply, or costs are measured
                    self._begin_rest()
                    return
                if self._stores:
                    lane.target.store(resting=True)

    def _wait(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Lane | None:
        with self._changed:
            while not self._free:
                if cancelled():
                    return None
                self._changed.wait(_LOOK_SECONDS)
            if self._rest:
                self._rest.cancel()
            lane = max(self._free, key=partial(_worth, prompt=prompt))
            self._free.remove(lane)
            return lane

    def _give_back(self, lanes: Sequence[Lane]) -> None:
        with self._changed:
            self._free = [lane for lane in self.all if lane in lanes or lane in self._free]
            self._changed.notify_all()


def _close(lanes: "ref[Lanes]") -> None:
    """Store texts of a pair that is still open when Python ends."""
    if (found := lanes()) is not None:
        found.close()


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A loaded pair, ready to run; `close` frees it."""

    name: str
    target_name: str
    draft_name: str  # of the model that drafts; "" when none does
    lanes: Lanes  # as many replies run at once
    rollback_limit: int | None  # draft tokens that the target can take back; None: all
    widest_batch: int  # tokens that the target verifies at once
    vocabulary: Vocabulary
    template: ChatTemplate
    sampling: Sampling  # the model's own defaults
    notices: tuple[str, ...]  # notices about this pair, sent with the first reply
    close: Callable[[], None]
    is_toy: bool = False  # the embedded demo

    @property
    def target(self) -> Decoder:
        """The target of the first lane."""
        return self.lanes.all[0].target

    @property
    def drafters(self) -> Sequence[Drafter]:
        """The drafters of the first lane that run models."""
        return self.lanes.all[0].drafters

    @property
    def drafting(self) -> StrategyMaker:
        """The drafting of the first lane."""
        return self.lanes.all[0].drafting
