"""Whether a drafter drafts, and how much: as much as pays, on a budget of plain steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Protocol

from localspec.algorithm.protocols import Backlog, Drafter, Proposal
from localspec.control.acceptance import AcceptanceModel
from localspec.control.costs import Costs, CostsByContext
from localspec.control.fixed_width import FixedWidth
from localspec.events import Cycle, Mode

COUNTED = 3  # steps of a run that count, where the first ones do not
LEAST_TOKENS = 48  # between two anchors
SHARE = 0.003  # of the time that anchors may take
MOST_TOKENS = 1024  # at any gain: a wrong plain step can make the gain look large
FIRST, FIRST_GAP = 2, 24  # with no measured table: plain steps soon, and tokens between them


class PlainProbes:
    """Plain steps among drafting cycles: single ones, or runs where a device takes longer after a change of width."""

    def __init__(self) -> None:
        self._tokens = 0  # since a plain step that counted
        self._left = 0  # steps of the run under way

    def due(self, costs: Costs, gain: float) -> bool:
        """Whether the next step is plain; `gain`: drafting's tokens per second / plain ones, minus 1."""
        if not self._left and self._tokens >= gap(costs, gain):
            self._left = costs.settling + COUNTED if costs.settling else 1
        return self._left > 0

    def learn(self, cycle: Cycle, costs: Costs) -> None:
        """A cycle, after the costs have learned it."""
        plain = cycle.is_plain
        self._left = max(self._left - 1, 0) if plain else 0
        self._tokens = 0 if plain and costs.settled else self._tokens + len(cycle.tokens)


def gap(costs: Costs, gain: float) -> float:
    """Tokens between two anchors, for a share of the time that they gain on them."""
    if not costs.measured and costs.plain_steps < FIRST:
        return FIRST_GAP * costs.plain_steps
    if costs.plain_is_doubtful:
        return FIRST_GAP
    lost = gain  # plain steps that a run of anchors costs
    if costs.settling:
        lost = (costs.settling + COUNTED) * gain + 2 * costs.change_seconds / costs.verify(1)
    return min(max(LEAST_TOKENS, lost / SHARE), MOST_TOKENS)


START = 1.75  # plain steps that an unknown drafter may lose, beside the gift; half of it if costs are a guess
LONG = 2048  # tokens: an unknown drafter can read little of a longer text,
LONG_START = 1.25  # and may lose no more beside it, the gift included
MOST = 12.0  # plain steps: gains beyond this buy no patience
DEBT = 1.0  # plain steps: a dear last cycle delays the next try by no more
MARGIN = 0.01  # drafting must win this share of the time, or its budget shrinks
SAVED = 0.01  # plain steps that every token written without drafting adds
GIFT = 1.0  # plain steps that another reply adds: it may be of another kind
STAKE_RUNS, LEAST_STAKE = 2, 0.04  # what another try may lose: draft runs, and plain steps at least
PATIENCE_GROWTH, MOST_PATIENCE = 1.5, 10.0  # stakes that the next try waits for after a failed one
CONVINCING = 1.0  # plain steps that a try has to win to be no failed one
WILD = 2.5  # a cycle this much slower than expected is a stall of the machine,
WILD_GAP, MOST_CALM = 8, 32  # one slow cycle in 8 is forgiven, after at most 32 calm ones
MEMORY = 64  # drafting cycles that the rate looks back on
CARRIED = 0.1  # weight of the last reply's rate
CAUTIOUS_DEPTH, TRUSTED = 3, 2  # the depth of an unknown drafter, until this number of tokens was kept
READING_SHARE = 0.5  # of the budget: the rest is for drafting
LEAST_WINDOW = 64  # tokens: a drafter that may read fewer does not begin
WIDER = 4  # times more text: only then a drafter reads again
CHUNK_SECONDS, LEAST_CHUNK = 0.1, 16  # reading in one cycle: seconds, or at least these tokens


class PassCosts(Protocol):
    """Seconds of verify batches: of one reply, or of one among several."""

    def verify(self, width: int) -> float:
        """Seconds of a target pass over `width` tokens."""

    def padding(self, width: int) -> int:
        """Padding for a verify batch."""


@dataclass(slots=True)
class Stopper:
    """The `Stopping` of one cycle: the chance of a token against what it costs.

    Maximising tokens per second is a renewal-reward problem: with `rate`, the tokens per second of the run as a
    whole, another token is worth its time when its chance of being kept exceeds `rate` times the seconds it adds.
    """

    chances: AcceptanceModel
    costs: PassCosts
    price: Callable[[int], float]  # seconds of drafting by depth
    rate: float
    depths: tuple[int, ...]
    _survival: float = 1.0

    def keeps(self, confidence: float, drafted: int) -> bool:
        chance = self.chances.of(confidence, drafted)
        kept = self._must_go_on(drafted) or self._gain(drafted, first=chance, draw_first=False) > 0
        self._survival *= chance
        return kept

    def goes_on(self, drafted: int) -> bool:
        first = self.chances.ahead(drafted)
        return self._must_go_on(drafted) or self._gain(drafted, first=first, draw_first=True) > 0

    def _must_go_on(self, drafted: int) -> bool:
        """If only some depths are allowed, a proposal ends only at one of them, or before the first."""
        return drafted > 0 and drafted not in self.depths

    def _gain(self, drafted: int, *, first: float, draw_first: bool) -> float:
        """Tokens won by drafting to the best later depth, less the tokens that its seconds are worth."""
        best, won, survival = -math.inf, 0.0, self._survival * first
        width = drafted + 1
        here = self.costs.verify(width + self.costs.padding(width))
        spent = self.price(drafted if draw_first else drafted + 1)
        for depth in range(drafted + 1, self.depths[-1] + 1):
            won += survival
            survival *= self.chances.ahead(depth)
            if depth in self.depths:
                seconds = self.costs.verify(depth + 1) - here + self.price(depth) - spent
                best = max(best, won - self.rate * seconds)
        return best


class DepthControl:
    """Decides for one drafter, over many replies.

    A bad drafter loses at most its budget: START plain steps, GIFT for each further reply, and the share SAVED of the
    text written without it.
    """

    def __init__(
        self,
        places: CostsByContext,
        drafter: Drafter,
        chances: AcceptanceModel,
        depths: Sequence[int],
        *,
        pads: bool = False,
    ) -> None:
        """`depths`: numbers of tokens that may be verified; what passes cost is shared with other drafters.

        `pads`: whether verify batches may be filled up to one width.
        """
        self._places = places
        self._holding = FixedWidth() if pads else None
        self._latest_tokens = 0  # of the latest drafting cycle, until the next choice of a width
        self.chances = chances
        self.depths = tuple(sorted(depths))
        self.on = True
        self.drafter = drafter
        self._budget = START if self.costs.measured else START / 2
        self._unasked = True  # by its first reply, which may follow a long text
        self._patience = 1.0
        self._trying = False  # drafting was switched on again and has not convinced yet
        self._won = 0.0  # plain steps, since then
        self._kept = 0
        self._calm = MOST_CALM  # drafting cycles that were as fast as expected, less those that were not
        self._tokens = self._seconds = 0.0  # of the latest drafting cycles

    def begin(self) -> None:
        """Another reply, perhaps of another kind: the last one counts for less."""
        self.chances.begin()
        self._budget = min(self._budget + GIFT, MOST)
        self._patience = 1.0
        self._tokens *= CARRIED
        self._seconds *= CARRIED

    @property
    def costs(self) -> Costs:
        """What passes cost at the present length of the context."""
        return self._places.costs

    @property
    def is_free(self) -> bool:
        """Whether the drafter proposes at no cost; then its confidences are the chances of its tokens."""
        return self.drafter.model_runs(1) == 0

    def seconds(self, depth: int) -> float:
        """Seconds that the drafter takes for `depth` tokens."""
        return self.costs.draft(self.drafter.source, self.drafter.model_runs(depth))

    @property
    def mode(self) -> Mode:
        if not self.on:
            return Mode.OFF
        return Mode.PROBE if self._trying else Mode.DRAFTING

    @property
    def rate(self) -> float:
        """Tokens per second of drafting lately, at least plain decoding's."""
        measured = self._tokens / self._seconds if self._seconds else 0.0
        return max(measured, 1 / self.costs.verify(1))

    def limit(self, room: int) -> int:
        """The most tokens of a proposal in `room`."""
        if self._holding and self.on and self.costs.replies == 1:
            self.costs.held = self._holding.width(
                self.costs, self.chances, self.seconds, self.depths, self._latest_tokens
            )
            self._latest_tokens = 0
        elif self._holding:
            self.costs.held = 0
        most = self.costs.held - 1 if self.costs.held else self.depths[-1]
        most = most if self._kept >= TRUSTED else max(min(most, CAUTIOUS_DEPTH), self.depths[0])
        return max((d for d in self.depths if d <= min(most, room)), default=0) if self.on else 0

    def survivals(self) -> tuple[float, ...]:
        """The chances that the first 1, 2, ... tokens are all kept, before any is drawn."""
        return tuple(accumulate(map(self.chances.ahead, range(self.limit(self.depths[-1]))), mul))

    def stopping(self, limit: int) -> Stopper:
        """The stopping rule for a proposal of at most `limit` tokens."""
        depths = tuple(depth for depth in self.depths if depth <= limit)
        return Stopper(self.chances, self.costs.to_propose(), self.seconds, self.rate, depths)

    def learn(self, cycle: Cycle, proposal: Proposal, shared_seconds: float | None = None) -> None:
        """Learn from a cycle that drafted, without its reading, and from its proposal.

        `shared_seconds`: what it counts for among several replies.
        """
        runs = proposal.runs or self.drafter.model_runs(cycle.drafted)
        seconds, emitted = shared_seconds, len(cycle.tokens)
        if seconds is None:
            seconds = self._sane(cycle.seconds, cycle.width, runs)
        if self.costs.held:  # `reconsider` has asked for the change of width already
            seconds = max(seconds - self.costs.latest_extra, seconds / WILD)
        if runs:
            self.costs.learn_draft(self.drafter.source, runs, cycle.draft_seconds)
        self.chances.learn(proposal.confidences[: cycle.drafted], cycle.accepted, emitted)
        self._kept += cycle.accepted
        self._latest_tokens = emitted
        self._tokens = self._tokens * (1 - 1 / MEMORY) + emitted
        self._seconds = self._seconds * (1 - 1 / MEMORY) + seconds
        if shared_seconds is None:
            self._pay(seconds / self.costs.verify(1) - emitted * (1 - MARGIN))

    def learn_reading(self, tokens: int, seconds: float) -> None:
        """Count the tokens that the drafter has read."""
        self.costs.learn_reading(self.drafter.source, tokens, seconds)
        self._pay(seconds * self.costs.replies / self.costs.verify(1))

    def save(self, tokens: int, fade: bool = False) -> None:
        """Tokens were written without it."""
        if fade:
            self.chances.fade(tokens)
        self._budget = min(self._budget + SAVED * tokens, MOST)

    def reconsider(self, reading: Backlog) -> None:
        """Switch drafting on again when the budget pays for another try and its reading."""
        if self._unasked and reading.unread > LONG:
            self._budget = min(self._budget, LONG_START)
        self._unasked = False
        if self.on:
            return
        plain = self.costs.verify(1)
        stake = max(STAKE_RUNS * self.seconds(1) / plain, LEAST_STAKE)
        stake += min(reading.unread, LEAST_WINDOW) * self._token_seconds / plain / READING_SHARE
        if self._budget >= self._patience * stake + self.costs.change_seconds / plain:
            self.on, self._trying, self._won = True, True, 0.0
            self._budget = stake
            self._patience = min(self._patience * PATIENCE_GROWTH, MOST_PATIENCE)
            self._tokens = self._seconds = 0.0
            self.chances.begin()

    def window(self, reading: Backlog) -> int | None:
        """How many of the newest tokens the drafter should read; None if it should not draft yet."""
        affordable = int(READING_SHARE * self._budget * self.costs.verify(1) / self._token_seconds)
        here, whole = reading.window, reading.window + reading.older
        if reading.older and affordable >= min(WIDER * here, whole):
            return min(affordable, whole)
        if reading.unread <= affordable:
            return here
        return affordable if affordable >= LEAST_WINDOW else None

    @property
    def chunk(self) -> int:
        """How many tokens the drafter may read in one cycle."""
        return max(int(CHUNK_SECONDS / self._token_seconds), LEAST_CHUNK)

    @property
    def why_off(self) -> str | None:
        """While drafting is off: the sentence for the user, with measured numbers."""
        if self.on:
            return None
        plain, why = self.costs.verify(1), "lately it cost more than it saved"
        if self._seconds and self._tokens / self._seconds < 1 / plain:
            drafting = self._tokens / self._seconds
            why = f"lately about {drafting:.1f} tokens/s with it against {1 / plain:.1f} without"
        found, tokens, kept = list[tuple[float, float, float]](), 1.0, 1.0
        for depth in range(1, self.depths[-1] + 1):
            kept *= self.chances.ahead(depth - 1)
            tokens += kept
            if depth in self.depths:
                check = self.costs.verify(depth + 1) / plain
                found.append((tokens, check + self.seconds(depth) / plain, check))
        tokens, steps, check = max(found, key=lambda each: each[0] / each[1])
        why = f"Drafting is off: {why}."
        if tokens > steps:  # as expected, but the measured cycles took longer
            return why
        return (
            f"{why} At best, a cycle writes {tokens:.2f} tokens in the time of {steps:.2f} plain steps; "
            f"checking the draft alone takes {check:.2f}."
        )

    def _sane(self, seconds: float, width: int, runs: int) -> float:
        """The seconds that a cycle counts for, without a stall of the machine."""
        most = WILD * (self.costs.verify(width) + self.costs.draft(self.drafter.source, runs))
        if seconds <= most or self._calm < WILD_GAP:
            self._calm = min(self._calm + 1, MOST_CALM)
            return seconds
        self._calm -= WILD_GAP
        return most

    @property
    def _token_seconds(self) -> float:
        """Seconds to read one token among many."""
        return self.costs.reading(self.drafter.source)

    def _pay(self, steps: float) -> None:
        """Subtract plain steps from the budget, or add gained ones; below 0 drafting is off."""
        self._budget = min(self._budget - steps, MOST)
        self._won -= steps
        if self._trying and self._won >= CONVINCING:
            self._trying, self._patience = False, 1.0
        if self._budget < 0:
            self.on, self._trying, self._budget = False, False, max(self._budget, -DEBT)
