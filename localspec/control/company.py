"""The depths of replies that share passes of the target.

Every reply asks at its own moment. What the others will draft is only expected then: the plan of the round, or the
batch that they have ready. A reply's depth follows from costs, expectations and confidences, never from tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock

from localspec.control.costs import Costs, CostsByContext
from localspec.control.depth import PlainProbes
from localspec.events import Cycle

FAIRNESS = 0.75  # a token more counts for so high a power of 1 / (tokens a cycle)
BACKGROUND = 0.35  # worth of a reply that nobody waits for
AIM = 0.915  # of its plain speed: a reply below it gains worth in every cycle, one above it loses some
HASTE, MOST_WORTH = 0.1, 16.0  # how fast, and the most
ADVANTAGE = 1.02  # times faster than plain rounds: drafting must promise as much
MOST_REST = 0.25  # of a pass of the target that the rest of the loop takes: more is a wait
MEMORY = 32  # rounds that the running rates look back on


@dataclass(frozen=True, slots=True)
class Prospect:
    """One reply's drafting: what it is worth, and the chances that its first 1, 2, ... tokens are all kept."""

    worth: float = 1.0
    survivals: tuple[float, ...] = ()


def use(reply: Prospect, tokens: float) -> float:
    """The worth of tokens in a cycle, each further one less.

    At the best depths a token pays iff weight x chance >= rate x seconds, with weight = worth / tokens ** FAIRNESS.
    """
    return reply.worth * math.pow(tokens, 1 - FAIRNESS)


def value(replies: Sequence[Prospect], tokens: Sequence[float], seconds: float) -> float:
    """The worth of rounds with these seconds, which bring each reply these tokens."""
    return sum(map(use, replies, tokens)) / math.pow(seconds, 1 - FAIRNESS)


def ragged_depths(
    replies: Sequence[Prospect], verify: Callable[[int], float], steps: Callable[[int], float]
) -> tuple[int, ...]:
    """The best depths where any widths share a pass.

    The best set of tokens is a prefix of their order by use. All widths are tried, as kernels make steps in the cost.
    `verify`: seconds of a pass by width; `steps`: of a draft step by the replies that take it.
    """
    depths, tokens, takers = [0] * len(replies), [1.0] * len(replies), list[int]()
    drafting, best = 0.0, tuple(depths)
    most = value(replies, tokens, verify(len(replies)) / ADVANTAGE)
    for width in range(len(replies) + 1, len(replies) + sum(len(reply.survivals) for reply in replies) + 1):
        won = [
            use(reply, count + reply.survivals[depth]) - use(reply, count)
            if depth < len(reply.survivals)
            else -1.0
            for reply, depth, count in zip(replies, depths, tokens, strict=True)
        ]
        i = won.index(max(won))
        step = depths[i]
        takers += [0] * (step + 1 - len(takers))
        drafting += steps(takers[step] + 1) - steps(takers[step])
        takers[step] += 1
        tokens[i] += replies[i].survivals[step]
        depths[i] += 1
        found = value(replies, tokens, drafting + verify(width))
        if found > most:
            best, most = tuple(depths), found
    return best


def equal_depths(
    replies: Sequence[Prospect], verify: Callable[[int], float], steps: Callable[[int], float]
) -> tuple[int, ...]:
    """The best one depth of all, where only equal widths share a pass."""
    drafting, best, tokens = 0.0, 0, [1.0] * len(replies)
    most = value(replies, tokens, verify(len(replies)) / ADVANTAGE)
    for depth in range(1, max((len(reply.survivals) for reply in replies), default=0) + 1):
        drafting += steps(sum(len(reply.survivals) >= depth for reply in replies))
        tokens = [
            count + sum(reply.survivals[depth - 1 : depth])
            for reply, count in zip(replies, tokens, strict=True)
        ]
        found = value(replies, tokens, drafting + verify(len(replies) * (depth + 1)))
        if found > most:
            best, most = depth, found
    return (best,) * len(replies)


@dataclass(frozen=True, slots=True)
class SharedCosts:
    """What a verify batch of one reply costs all replies of its round, as if it were alone.

    A second that it adds delays every reply: it counts once for each.
    """

    costs: Costs
    others: tuple[int, ...]  # draft tokens that each of the other replies is expected to verify
    equal: bool  # a pass fills all up to the widest

    @property
    def replies(self) -> int:
        return 1 + len(self.others)

    def verify(self, width: int) -> float:
        """Seconds of plain decoding, and the delay of all by the tokens beyond the first."""
        return self.costs.verify(1) + self.replies * (self._whole(width) - self._whole(1))

    def padding(self, width: int) -> int:
        """The pass fills batches up by itself."""
        return 0

    def drafting(self, seconds: Callable[[int], float], depth: int) -> float:
        """The delay of all by draft steps: those that others take as well cost nothing."""
        return self.replies * (seconds(depth) - seconds(min(depth, max(self.others))))

    def _whole(self, width: int) -> float:
        drafted = self.replies * max(width - 1, *self.others) if self.equal else width - 1 + sum(self.others)
        return self.costs.verify(1 + drafted)


@dataclass(slots=True, eq=False)
class Seat:
    """One reply in the company."""

    worth: float = 1.0  # of a reply that somebody waits for
    given: int | None = None  # a depth that nobody may change
    survivals: tuple[float, ...] = ()  # expected of the next proposal
    step_seconds: float = 0.0  # of a token of it
    depth: int = 0  # planned
    width: int = 0  # of the batch that is ready for this round; 0: none is yet
    draft_seconds: float = 0.0  # of this round
    plight: float = 1.0  # its worth grows by as much, until it has its share of speed
    cycles: float = 1.0  # lately, fading
    tokens: float = 1.0  # in them

    def ready(self, width: int, draft_seconds: float) -> None:
        """Its batch of this round has this width."""
        self.width, self.draft_seconds = width, draft_seconds

    @property
    def tokens_a_cycle(self) -> float:
        return self.tokens / self.cycles

    @property
    def weight(self) -> float:
        return self.worth * self.plight / math.pow(self.tokens_a_cycle, FAIRNESS)


@dataclass(slots=True)
class Company:
    """The replies that run, and what their rounds cost; callers hold the lock."""

    places: CostsByContext
    anchors: PlainProbes = field(default_factory=PlainProbes)
    lanes: int = 1  # replies that may run at once
    equal: bool = True  # a pass fills all replies up to the widest, as in a cache with a stream for each
    lock: RLock = field(default_factory=RLock)
    anchor: bool = False  # this round is plain, to measure it
    _seats: list[Seat] = field(default_factory=list)  # of replies that asked in the last round or in this one
    _asked: list[Seat] = field(default_factory=list)  # in this round
    _learned: list[Seat] = field(default_factory=list)  # from the latest pass
    _context_tokens: int = 0  # of the longest text
    _together: bool = True  # all shared the latest pass
    _rounds: float = 0.0  # lately, fading
    _seconds: float = 0.0  # of them

    @property
    def replies(self) -> int:
        return len(self._seats)

    def ask(self, seat: Seat, context_tokens: int) -> SharedCosts | None:
        """A reply is about to propose: the price of its tokens beside the others; None if it is alone.

        Whoever asks a second time begins a round. Who did not ask in the last one has left.
        """
        before = self.replies
        if seat in self._asked:
            self._seats, self._asked, self._context_tokens = self._asked, [], 0
            for other in self._seats:
                other.ready(0, 0.0)
        if seat not in self._seats:
            self._seats.append(seat)
        self._context_tokens = max(self._context_tokens, context_tokens)
        if not self._asked or self.replies != before:
            self._begin_round(same=self.replies == before)
        self._asked.append(seat)
        if self.replies == 1:
            return None
        others = (
            other.width - 1 if other.width else other.depth for other in self._seats if other is not seat
        )
        return SharedCosts(self.places.costs, tuple(others), self.equal)

    def rate(self, seat: Seat) -> float:
        """Tokens per second that the next token of this reply must match, in the seconds of SharedCosts."""
        worth = sum(other.weight * other.tokens_a_cycle for other in self._seats)
        return worth / (self.replies * seat.weight * self._round_seconds)

    def learn(self, seat: Seat, cycle: Cycle) -> float:
        """Learn from a shared cycle; returns the seconds that it counts for."""
        costs, width = self.places.costs, max(cycle.pass_width, cycle.width)
        seat.cycles = seat.cycles * (1 - 1 / MEMORY) + 1
        seat.tokens = seat.tokens * (1 - 1 / MEMORY) + len(cycle.tokens)
        if seat in self._learned or not self._learned:
            self._learned = []
            self._learn_pass(cycle, width)
        self._learned.append(seat)
        plain = costs.verify(1)
        speed = seat.tokens_a_cycle * plain / self._round_seconds
        seat.plight = min(max(seat.plight * math.exp(HASTE * (AIM - speed)), 1.0), MOST_WORTH)
        share = (cycle.width - 1) / max(width - self.replies, 1)
        added = max(costs.verify(max(width - self.replies, 0) + 1) - plain, 0.0)
        return plain + self.replies * (cycle.draft_seconds - cycle.reading_seconds + share * added)

    def without_waits(self, cycle: Cycle) -> Cycle:
        """The cycle without waits for the prompts of others: drafting is not to blame for them."""
        rest = min(cycle.other_seconds, MOST_REST * cycle.verify_seconds)
        return cycle if self.lanes == 1 else replace(cycle, other_seconds=rest)

    @property
    def _round_seconds(self) -> float:
        return (self.places.costs.verify(1) + self._seconds) / (1 + self._rounds)

    def _learn_pass(self, cycle: Cycle, width: int) -> None:
        """Learn the cost of a round, from the first reply that tells about it."""
        drafting = max(seat.draft_seconds for seat in self._seats)  # steps are shared as well
        self._together = cycle.replies == self.replies
        if not self._together:
            return
        costs, plain = self.places.costs, width == self.replies and not drafting
        waited = drafting - cycle.draft_seconds  # for the draft steps of others
        cycle = self.without_waits(replace(cycle, other_seconds=max(cycle.other_seconds - waited, 0.0)))
        seconds = cycle.verify_seconds + cycle.other_seconds
        costs.learn_verify(
            width - self.replies + 1,
            seconds,
            drafted=not plain,
            deciding_seconds=cycle.deciding_seconds,
        )
        self.anchors.learn(cycle if plain else replace(cycle, width=max(width, 2)), costs)
        self._rounds = self._rounds * (1 - 1 / MEMORY) + 1
        self._seconds = self._seconds * (1 - 1 / MEMORY) + drafting + seconds

    def _begin_round(self, *, same: bool) -> None:
        """Plan the depths of all; `same`: as many replies as in the last round."""
        self.places.move(self._context_tokens, self.replies)
        if not same:
            self._rounds = self._seconds = 0.0
        costs, replies = self.places.costs, self.replies
        self.anchor = False
        if replies == 1:
            return
        if not self._asked and self._together and not any(seat.given for seat in self._seats):
            tokens = sum(seat.tokens_a_cycle for seat in self._seats) / replies
            self.anchor = self.anchors.due(costs, tokens * costs.verify(1) / self._round_seconds - 1)
        step = max(seat.step_seconds for seat in self._seats)
        depths = (equal_depths if self.equal else ragged_depths)(
            [Prospect(seat.worth * seat.plight, seat.survivals) for seat in self._seats],
            lambda width: costs.verify(width - replies + 1),
            lambda count: step if count else 0.0,
        )
        for seat, depth in zip(self._seats, depths, strict=True):
            seat.depth = seat.given or (0 if self.anchor else depth)
