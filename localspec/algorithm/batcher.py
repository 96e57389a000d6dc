"""Several replies in one pass of the target: each runs the loop in a thread of its own, one of them decodes for all."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import numpy as np

from localspec.errors import LocalspecError
from localspec.sampler.passes import Pass

PAUSE = 0.2  # of a pass: how late a reply may come to be waited for
PROMPT_SHARE = 2.5  # of a plain pass: what the tokens of a prompt may add to the pass of another reply
FIRST_CHUNK, LEAST_CHUNK = 6, 4  # tokens of prompts beside other replies: before they are timed, and at least
REMEMBERED = 32  # passes without a prompt: the quickest of them counts as plain
FORGOTTEN = 256  # such passes, after which a price that none of them told is tried anew
NEWEST = 0.3  # weight of the newest measurement


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens that one lane adds to a pass, and how many of the last ones need a row."""

    lane: int
    tokens: Sequence[int]
    rows: int
    alone: bool = False  # in a pass of its own


class SharedDecoder(Protocol):
    """A model with a cache for several texts, one a lane."""

    def decode(self, parts: Sequence[Part]) -> Sequence[Pass]:
        """One pass over the parts, at most one a lane. Rows are valid until the next one, hidden rows are copies.

        It raises when it kept nothing of any part.
        """


@dataclass(slots=True)
class Lane:
    """What the batcher knows of a reply that runs."""

    since: float  # when it began, or got its last pass
    arrived: float = 0.0  # when its newest part came
    waited_seconds: float = 0.0  # of that part, for prompts of others
    gap_seconds: float = 0.0  # from a pass to its next part, usually
    width: int = 1  # tokens of its latest part
    reads_prompt: bool = True
    alone: bool = False


class Prices:
    """The seconds of passes and of prompt tokens, as measured lately."""

    def __init__(self) -> None:
        # Usual seconds without a prompt and the number of the newest such pass, by the tokens of all replies.
        self._passes: dict[int, tuple[float, int]] = {}
        self._count = 0  # of passes without a prompt
        self._latest: deque[float] = deque(maxlen=REMEMBERED)
        self._token_seconds = 0.0  # that a token of a prompt adds

    @property
    def plain_seconds(self) -> float:
        """The quickest pass without a prompt, lately."""
        return min(self._latest, default=0.0)

    def learn(self, parts: Sequence[Part], width: int, seconds: float) -> None:
        """A pass over these parts; `width`: their tokens, and the padding between them."""
        prompt = sum(len(part.tokens) for part in parts if not part.rows)
        if not prompt:
            self._latest.append(seconds)
            self._count += 1
            usual, _ = self._passes.get(width, (None, 0))
            self._passes[width] = mixed(usual, seconds), self._count
            oldest = self._count - FORGOTTEN
            self._passes = {each: told for each, told in self._passes.items() if told[1] > oldest}
            return
        own = self.plain_seconds if any(part.rows for part in parts) else 0.0
        self._token_seconds = mixed(self._token_seconds or None, max(seconds - own, 0.0) / prompt)

    def chunk(self) -> int:
        """How many tokens of a prompt other replies may wait for."""
        if not (self._latest and self._token_seconds):
            return FIRST_CHUNK
        return max(int(PROMPT_SHARE * self.plain_seconds / self._token_seconds), LEAST_CHUNK)

    def saved(self, widths: Sequence[int], width: int) -> float:
        """The seconds that one more reply in a pass over parts of these widths saves, against a pass of its own."""
        here = len(widths) * max(widths)
        return max(self._of(here) + self._of(width) - self._of((len(widths) + 1) * max(*widths, width)), 0.0)

    def _of(self, width: int) -> float:
        """The seconds of a pass; as many as of the widest known one if it is wider still, so that it is tried."""
        known = sorted(self._passes)
        return float(np.interp(width, known, [self._passes[each][0] for each in known])) if known else 0.0


def mixed(usual: float | None, newest: float) -> float:
    return newest if usual is None else usual + NEWEST * (newest - usual)


class Batcher:
    """Joins what the threads of several replies want decoded into passes of one decoder.

    A thread that finds nobody decoding waits a little for the other replies and then decodes for all of them. Rows
    are views of one buffer: the next pass waits until every lane has released its rows.
    """

    def __init__(self, shared: SharedDecoder, clock: Callable[[], float] = perf_counter) -> None:
        self._shared = shared
        self._clock = clock
        self._changed = threading.Condition()  # guards all that follows
        self._lanes: dict[int, Lane] = {}  # those that answer a reply
        self._waiting: dict[int, Part] = {}  # the oldest first
        self._flying: frozenset[int] = frozenset()  # lanes of the pass under way
        self._found: dict[int, Pass] = {}  # passes that their lanes have not taken yet
        self._reading: set[int] = set()  # lanes that may still read rows of the last pass
        self._led = False  # some thread decodes, or waits for others before it does
        self.prices = Prices()

    @property
    def replies(self) -> int:
        """How many replies run."""
        return len(self._lanes)

    def join(self, lane: int) -> None:
        """A reply begins on this lane."""
        with self._changed:
            assert lane not in self._lanes, f"lane {lane} answers a reply"
            self._lanes[lane] = Lane(self._clock())

    def leave(self, lane: int) -> None:
        """The reply on this lane ended; idempotent."""
        with self._changed:
            self._lanes.pop(lane, None)
            self._reading.discard(lane)
            self._changed.notify_all()

    def release(self, lane: int) -> None:
        """The lane reads no more of its rows; idempotent."""
        with self._changed:
            if lane in self._reading:
                self._reading.remove(lane)
                self._changed.notify_all()

    def prompt_chunk(self, lane: int, usual: int) -> int:
        """How many tokens of a prompt the lane may decode at once: `usual`, but fewer where another reply waits."""
        with self._changed:
            writing = (not other.reads_prompt for number, other in self._lanes.items() if number != lane)
            return min(usual, self.prices.chunk()) if any(writing) else usual

    def decode(self, part: Part) -> Pass:
        """Decode a part, with those of other lanes where they are ready. Raises what its pass raises."""
        with self._changed:
            self._arrive(part)
            try:
                while part.lane not in self._found:
                    if self._led or not self._may_lead(part.lane):
                        self._changed.wait()
                    else:
                        self._lead(part.lane)
            except BaseException:  # Ctrl-C as well: nobody decodes for a thread that is gone
                self._withdraw(part.lane)
                raise
            return self._found.pop(part.lane)

    def _arrive(self, part: Part) -> None:
        self._reading.discard(part.lane)
        self._waiting[part.lane] = part
        if lane := self._lanes.get(part.lane):
            lane.arrived, lane.waited_seconds = self._clock(), 0.0
            lane.gap_seconds = mixed(lane.gap_seconds or None, lane.arrived - lane.since)
            lane.reads_prompt, lane.alone, lane.width = not part.rows, part.alone, part.rows or lane.width
        self._changed.notify_all()

    def _withdraw(self, lane: int) -> None:
        while lane in self._flying:
            self._changed.wait()
        self._waiting.pop(lane, None)
        self._found.pop(lane, None)
        self._reading.discard(lane)
        self._changed.notify_all()

    def _may_lead(self, lane: int) -> bool:
        """Whether the next pass has the part of this lane: the oldest part's pass comes first."""
        oldest = next(iter(self._waiting.values()))
        return oldest.lane == lane if oldest.alone else not self._waiting[lane].alone

    def _lead(self, lane: int) -> None:
        """Wait for other lanes, then decode for all that are ready, this one among them."""
        self._led = True
        try:
            self._wait()
            own = self._waiting[lane]
            parts = [own] if own.alone else self._joined(own)
            for part in parts:
                del self._waiting[part.lane]
            self._flying = frozenset(part.lane for part in parts)
            self._fly(parts, lane)
        finally:
            self._led, self._flying = False, frozenset()
            self._changed.notify_all()

    def _joined(self, own: Part) -> list[Part]:
        """This part and those that join its pass; prompts that together hold up others take turns."""
        parts, read = [own], 0 if own.rows else len(own.tokens)
        for part in self._waiting.values():
            tokens = 0 if part.rows else len(part.tokens)
            fits = not tokens or not read or read + tokens <= self.prices.chunk()
            if part is not own and not part.alone and fits:
                parts.append(part)
                read += tokens
        return parts

    def _fly(self, parts: Sequence[Part], lane: int) -> None:
        """One pass; the parts of one that failed are tried again alone, each by its own thread."""
        began = self._clock()
        try:
            found = self._unlocked(parts)
        except BaseException as failure:
            again = isinstance(failure, LocalspecError) and len(parts) > 1
            for part in parts:
                if again or part.lane != lane:
                    self._waiting[part.lane] = replace(part, alone=True)
            if again:
                return
            raise
        now, rows = self._clock(), any(part.rows for part in parts)
        width = max(sum(len(part.tokens) for part in parts), *(one.pass_width for one in found))
        self.prices.learn(parts, width, now - began)
        self._count_waits(parts, began, began + max(one.waited_seconds for one in found) if rows else now)
        for part, one in zip(parts, found, strict=True):
            here = self._lanes.get(part.lane)
            waited = here.waited_seconds if here else 0.0
            self._found[part.lane] = replace(one, replies=len(parts), pass_width=width, waited_seconds=waited)
            if part.rows:
                self._reading.add(part.lane)
            if here:
                here.since = now

    def _count_waits(self, parts: Sequence[Part], began: float, end: float) -> None:
        """Prompts were read from `began` to `end`: replies waited for them, in this pass or for the next."""
        for part in (*parts, *self._waiting.values()):
            if part.rows and (lane := self._lanes.get(part.lane)):
                lane.waited_seconds += max(end - max(began, lane.arrived), 0.0)

    def _unlocked(self, parts: Sequence[Part]) -> Sequence[Pass]:
        self._changed.release()
        try:
            return self._shared.decode(parts)
        finally:
            self._changed.acquire()

    def _wait(self) -> None:
        """Until all rows are released, and no other reply is worth a wait."""
        began = self._clock()
        while True:
            if self._reading:
                self._changed.wait()
            elif (seconds := self._worth_waiting(began)) > 0:
                self._changed.wait(seconds)
            else:
                return

    def _worth_waiting(self, began: float) -> float:
        """The seconds to wait for the replies that come soon; 0 or less: none does."""
        ready = [part for part in self._waiting.values() if not part.alone]
        if len(ready) < len(self._waiting):
            return 0.0
        usual, widths = self.prices.plain_seconds, [part.rows or 1 for part in ready]
        until = began
        for number, lane in self._lanes.items():
            if number in self._waiting or lane.alone:
                continue
            expected = lane.since + lane.gap_seconds
            last = began + self.prices.saved(widths, lane.width)
            if began - usual <= expected <= last:
                until = max(until, min(max(expected, began) + PAUSE * usual, last))
        return until - self._clock()
