"""The depths of replies that share passes of the target.

Every reply asks at its own moment. What the others will draft is only expected then: the plan of the round, or the
batch that they have ready. A reply's depth follows from costs, expectations and confidences, never from tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock

from localspec.control.costs import Costs, CostsByContext
from localspec.control.depth import SHARE, PlainProbes
from localspec.events import Cycle

FAIRNESS = 0.75  # a token more counts for so high a power of 1 / (tokens per second)
BACKGROUND = 0.35  # worth of a reply that nobody waits for
AIM = 0.915  # of its plain speed: a reply below it gains worth in every cycle, one above it loses some
HASTE, MOST_WORTH = 0.1, 16.0  # how fast, and the most
ADVANTAGE = 1.02  # times faster than plain rounds: drafting must promise as much
MOST_REST = 0.25  # of a pass of the target that the rest of the loop takes: more is a wait
MEMORY = 32  # rounds that a reply's speed looks back on


@dataclass(slots=True, eq=False)
class Seat:
    """One reply in the company."""

    worth: float = 1.0  # of a reply that somebody waits for
    given: int | None = None  # a depth that nobody may change
    survivals: tuple[float, ...] = ()  # chances that its next 1, 2, ... draft tokens are all kept
    step_seconds: float = 0.0  # of a token of it
    depth: int = 0  # planned
    width: int = 0  # of the batch that is ready for this round; 0: none is yet
    draft_seconds: float = 0.0  # of this round
    context_tokens: int = 0
    plight: float = 1.0  # its worth grows by as much, until it has its share of speed
    tokens: float = 1.0  # of the latest rounds, fading
    steps: float = 1.0  # what they took, in plain rounds

    def ready(self, width: int, draft_seconds: float) -> None:
        """Its batch of this round has this width."""
        self.width, self.draft_seconds = width, draft_seconds

    def learn(self, tokens: int, steps: float) -> None:
        """A round that took as long as `steps` plain ones brought it these tokens."""
        self.tokens = self.tokens * (1 - 1 / MEMORY) + tokens
        self.steps = self.steps * (1 - 1 / MEMORY) + steps
        self.plight = min(max(self.plight * math.exp(HASTE * (AIM - self.speed)), 1.0), MOST_WORTH)

    @property
    def speed(self) -> float:
        """Times faster than plain rounds."""
        return self.tokens / self.steps

    @property
    def weight(self) -> float:
        """The worth of a token more."""
        return self.worth * self.plight / math.pow(self.speed, FAIRNESS)


def value(seats: Sequence[Seat], tokens: Sequence[float], seconds: float) -> float:
    """The worth of rounds with these seconds, which bring each reply these tokens.

    Each further token of a reply is worth less: so the best depth starves nobody.
    """
    return sum(
        seat.worth * seat.plight * math.pow(count / seconds, 1 - FAIRNESS)
        for seat, count in zip(seats, tokens, strict=True)
    )


def best_shared_depth(seats: Sequence[Seat], verify: Callable[[int], float], step_seconds: float) -> int:
    """The best depth of all: only equal widths share a pass, and draft steps are taken together.

    All depths are tried, as kernels make steps in the cost. `verify`: seconds of a pass by width.
    """
    best, tokens = 0, [1.0] * len(seats)
    most = value(seats, tokens, verify(len(seats)) / ADVANTAGE)
    for depth in range(1, max((len(seat.survivals) for seat in seats), default=0) + 1):
        tokens = [
            count + sum(seat.survivals[depth - 1 : depth]) for seat, count in zip(seats, tokens, strict=True)
        ]
        found = value(seats, tokens, depth * step_seconds + verify(len(seats) * (depth + 1)))
        if found > most:
            best, most = depth, found
    return best


@dataclass(frozen=True, slots=True)
class SharedCosts:
    """What a verify batch of one reply costs all replies of its round, as if it were alone.

    A pass fills all batches up to the widest. A second that a batch adds delays every reply: it counts once for each.
    """

    costs: Costs
    replies: int
    drafted: int  # most tokens that another reply is expected to draft: as many cost nothing here

    def verify(self, width: int) -> float:
        """Seconds of plain decoding, and the delay of all by the tokens beyond the first."""
        return self.costs.verify(1) + self.replies * (self._whole(width) - self._whole(1))

    def padding(self, width: int) -> int:
        """The pass fills batches up by itself."""
        return 0

    def drafting(self, seconds: Callable[[int], float], depth: int) -> float:
        """The delay of all by draft steps: those that others take as well cost nothing."""
        return self.replies * (seconds(depth) - seconds(min(depth, self.drafted)))

    def _whole(self, width: int) -> float:
        return self.costs.verify(1 + self.replies * max(width - 1, self.drafted))


@dataclass(slots=True)
class Company:
    """The replies that run, and what their rounds cost; callers of `ask`, `rate` and `learn` hold the lock."""

    places: CostsByContext
    anchors: PlainProbes = field(default_factory=PlainProbes)
    lanes: int = 1  # replies that may run at once
    lock: RLock = field(default_factory=RLock)
    anchor: bool = False  # this round is plain, to measure it
    _seats: list[Seat] = field(default_factory=list)  # of replies that asked in the last round or in this one
    _asked: list[Seat] = field(default_factory=list)  # in this round
    _learned: list[Seat] = field(default_factory=list)  # from the latest pass
    _together: bool = True  # all shared the latest pass
    _steps: float = 1.0  # what its round took, in plain rounds
    _left_out: int = 0  # rounds since drafting was planned

    @property
    def replies(self) -> int:
        return len(self._seats)

    def ask(self, seat: Seat, context_tokens: int) -> SharedCosts | None:
        """A reply is about to propose: the price of its tokens beside the others; None if it is alone.

        Whoever asks a second time begins a round, without those that did not ask in the last one.
        """
        before = self.replies
        if seat in self._asked:
            self._seats, self._asked = self._asked, []
            for other in self._seats:
                other.ready(0, 0.0)
        if seat not in self._seats:
            self._seats.append(seat)
        seat.context_tokens = context_tokens
        if not self._asked or self.replies != before:
            self._begin_round()
        self._asked.append(seat)
        if self.replies == 1:
            return None
        others = (
            other.width - 1 if other.width else other.depth for other in self._seats if other is not seat
        )
        return SharedCosts(self.places.costs, self.replies, max(others))

    def leave(self, seat: Seat) -> None:
        """Its reply has ended."""
        with self.lock:
            for seats in (self._seats, self._asked, self._learned):
                if seat in seats:
                    seats.remove(seat)

    def rate(self, seat: Seat) -> float:
        """Tokens per second that the next token of this reply must match, in the seconds of SharedCosts."""
        costs, worth = self.places.costs, sum(other.weight * other.speed for other in self._seats)
        return worth / (costs.replies * seat.weight * costs.verify(1))

    def learn(self, seat: Seat, cycle: Cycle) -> float:
        """Learn from a shared cycle; returns the seconds that it counts for."""
        costs, width = self.places.costs, max(cycle.pass_width, cycle.width)
        if seat in self._learned or not self._learned:
            self._learned = []
            self._learn_pass(cycle, width)
        self._learned.append(seat)
        if self._together:
            seat.learn(len(cycle.tokens), self._steps)
        plain, wider = costs.verify(1), max(width - costs.replies, 0)
        share = (cycle.width - 1) / max(wider, 1)
        added = max(costs.verify(wider + 1) - plain, 0.0)
        return plain + costs.replies * (cycle.draft_seconds - cycle.reading_seconds + share * added)

    def without_waits(self, cycle: Cycle) -> Cycle:
        """The cycle without waits for the prompts of others: drafting is not to blame for them."""
        rest = min(cycle.other_seconds, MOST_REST * cycle.verify_seconds)
        return cycle if self.lanes == 1 else replace(cycle, other_seconds=rest)

    def _learn_pass(self, cycle: Cycle, width: int) -> None:
        """Learn the cost of a round, from the first reply that tells about it."""
        costs = self.places.costs
        self._together = cycle.replies == costs.replies
        if not self._together:
            return
        # Steps are shared as well.
        drafting = max((seat.draft_seconds for seat in self._seats), default=cycle.draft_seconds)
        plain = width == costs.replies and not drafting
        waited = drafting - cycle.draft_seconds  # for the draft steps of others
        cycle = self.without_waits(replace(cycle, other_seconds=max(cycle.other_seconds - waited, 0.0)))
        seconds = cycle.verify_seconds + cycle.other_seconds
        costs.learn_verify(
            width - costs.replies + 1,
            seconds,
            drafted=not plain,
            deciding_seconds=cycle.deciding_seconds,
        )
        self.anchors.learn(cycle if plain else replace(cycle, width=max(width, 2)), costs)
        self._steps = (drafting + seconds) / costs.verify(1)

    def _begin_round(self) -> None:
        """Plan the depths of all."""
        replies = self.replies
        self.places.move(max(seat.context_tokens for seat in self._seats), replies)
        costs = self.places.costs
        self.anchor = False
        if replies == 1:
            return
        if not self._asked and self._together and not any(seat.given for seat in self._seats):
            speed = sum(seat.speed for seat in self._seats) / replies
            self.anchor = self.anchors.due(costs, speed - 1)
        step = max(seat.step_seconds for seat in self._seats)
        depth = best_shared_depth(self._seats, lambda width: costs.verify(width - replies + 1), step)
        if not depth and not self._asked:
            self._left_out += 1
            depth = int(self._left_out * SHARE >= self._trial_loss(step))
        self._left_out *= not depth
        for seat in self._seats:
            seat.depth = (0 if self.anchor else depth) if seat.given is None else seat.given

    def _trial_loss(self, step: float) -> float:
        """Plain rounds that a round at depth 1 may lose."""
        costs, replies = self.places.costs, self.replies
        kept = sum(sum(seat.survivals[:1]) for seat in self._seats) / replies
        return ADVANTAGE * (costs.verify(replies + 1) + step) / costs.verify(1) - 1 - kept
