"""How many tokens to draft: the depth with the most tokens per second, and none where drafting loses."""

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.events import Cycle, Mode
from localspec.speculation.costs import Costs
from localspec.speculation.hazards import Hazards
from localspec.speculation.ledger import Ledger
from localspec.speculation.stopping import Confidence, Stopper

KEEP = 1.01  # a new depth must promise this much more than the one in use
LOOK_AHEAD = 16  # every so many cycles the next larger depth is tried once, if it might be better
OPTIMISM = 1.0  # standard errors in drafting's favour before it is switched off
HOPELESS_CYCLES = 2  # in a row, with no measured table: one wild measurement switches nothing off
CAUTIOUS_DEPTH, TRUSTED = 3, 2  # the depth of an unknown draft until it has kept so many tokens
THRIFT = 0.8  # of the run's speed is what a token must pay for: judging by all of it stops too often
STOP_AFTER = 32  # tokens kept before confidence may end a proposal
ANCHOR_TOKENS, ANCHOR_SHARE = (
    48,
    0.003,
)  # plain steps come at most so often and take at most this share of time
MOST_ANCHOR_TOKENS = 1024  # however large the gain: it may be large because a plain step was measured wrongly
FIRST_ANCHORS, FIRST_GAP = 2, 24  # with no measured table: so many plain steps soon, so many tokens apart
PROBE_FAILURES, PROBE_SHARE = (
    2,
    0.02,
)  # a probe may lose so many cycles; the first probes take this share of time
PATIENCE_GROWTH, MOST_PATIENCE = 1.5, 10.0  # failed probes come ever more rarely
WILD = 4.0  # a cycle this much slower than expected says something about the machine, not about drafting
LAG = 8  # unread tokens from which on the first draft step is mostly reading
READING = 0.1  # reading a token among many / drafting one, until it was measured


@dataclass(frozen=True, slots=True)
class Plan:
    """The coming cycle: how many tokens to draft, why, and the tokens per second that this promises."""

    depth: int
    mode: Mode
    value: float


class Auto:
    """Chooses the depth by measured costs and censored acceptance; switches drafting off and back on.

    Costs and acceptance are shared with whoever else learns them; the rest is this run's state.
    """

    def __init__(
        self, costs: Costs, hazards: Hazards, confidence: Confidence | None, depths: Sequence[int]
    ) -> None:
        """`confidence`: calibration for stopping early, or None to draft every proposal to its full depth."""
        self.costs = costs
        self.hazards = hazards
        self.confidence = confidence
        self.depths = tuple(sorted(depths))
        self.on = True
        self._ledger = Ledger()
        self._depth = self.depths[0]
        self._cycles = 0
        self._tokens_since_plain = 0
        self._unread = 0  # tokens that the draft model has yet to read before it can draft
        self._reading_seconds: float | None = None  # for one of them, once it was measured
        self._hopeless = 0  # drafting cycles in a row
        self._tokens_off = 0
        self._probing = False
        self._probe_balance = 0.0  # plain steps won
        self._patience = 1.0
        self._speeds = Speeds()
        self._values: dict[float, list[float]] = {}  # by optimism, until the next cycle
        self._stopper: Stopper | None = None

    def plan(self, room: int, unread: int = 0) -> Plan:
        """What to do with room for `room` draft tokens; the draft has `unread` tokens to catch up on."""
        self._unread = unread
        depth, mode = self._depth_and_mode()
        depth = max((d for d in self.depths if d <= min(depth, room)), default=0)
        return Plan(depth, mode, self.value(depth))

    def stopping(self, plan: Plan) -> Stopper | None:
        """What ends the proposal of a plan early; None where every proposal has its full depth."""
        self._stopper = None
        if self.confidence is None or plan.mode is not Mode.DRAFTING or self.hazards.kept < STOP_AFTER:
            return None
        rates = self.hazards.rates()
        self._stopper = Stopper(
            self.confidence,
            self.costs,
            hazard=lambda i: rates[min(i, len(rates)) - 1],
            rate=THRIFT * max(self.value(0), self._speeds.mean),
            depths=self.depths,
            limit=plan.depth,
        )
        return self._stopper

    def learn(self, cycle: Cycle, confidences: tuple[float, ...] = ()) -> None:
        """A cycle that the draft model drafted, or a plain step."""
        self._cycles += 1
        self._values.clear()
        self.costs.learn_verify(cycle.width, cycle.verify_seconds + cycle.other_seconds)
        self._tokens_since_plain = 0 if cycle.width == 1 else self._tokens_since_plain + len(cycle.tokens)
        seconds = cycle.seconds
        if cycle.depth:
            seconds -= self._learn_reading(cycle)
            self._learn_drafting(cycle, seconds, confidences[: cycle.drafted])
        if self.on:
            self._consider_switching_off(drafted=cycle.depth > 0)
        else:
            self._learn_off(len(cycle.tokens), seconds, drafted=cycle.depth > 0)

    def learn_elsewhere(self, cycle: Cycle) -> None:
        """A cycle that another drafter drafted: it tells what batches cost; the draft model falls behind."""
        self._values.clear()
        self.costs.learn_verify(cycle.width, cycle.verify_seconds + cycle.other_seconds)
        self._tokens_since_plain += len(cycle.tokens)

    def value(self, depth: int, optimism: float = 0.0) -> float:
        """Tokens per second at a depth; 0 is plain decoding."""
        if optimism not in self._values:
            self._values[optimism] = self._all_values(optimism)
        return self._values[optimism][depth]

    def best_depth(self, optimism: float = 0.0) -> int:
        """The depth above 0 that promises most."""
        return max(self.depths, key=lambda depth: self.value(depth, optimism))

    def _all_values(self, optimism: float) -> list[float]:
        values, expected, survival = [1 / self.costs.verify(1)], 1.0, 1.0
        for depth, rate in enumerate(self.hazards.rates(optimism)[: self.depths[-1]], start=1):
            survival *= rate
            expected += survival
            values.append(expected / self.costs.cycle(depth) if depth in self.depths else 0.0)
        return values

    def _depth_and_mode(self) -> tuple[int, Mode]:
        if not self.on:
            return (self.depths[0], Mode.PROBE) if self._probing else (0, Mode.OFF)
        if self._tokens_since_plain >= self._anchor_gap():
            return 0, Mode.ANCHOR
        best = self.best_depth()
        if self.value(best) > KEEP * self.value(self._depth):
            self._depth = best
        depth = self._depth
        if self.hazards.kept < TRUSTED:
            depth = min(depth, CAUTIOUS_DEPTH)
        elif self._cycles % LOOK_AHEAD == LOOK_AHEAD - 1:
            depth = self._look_ahead()
        return max(depth, self.depths[0]), Mode.DRAFTING

    def _look_ahead(self) -> int:
        after = min((d for d in self.depths if d > self._depth), default=self._depth)
        return after if self.value(after, OPTIMISM) > self.value(self._depth) else self._depth

    def _anchor_gap(self) -> float:
        if not self.costs.measured and self.costs.plain_steps < FIRST_ANCHORS:
            return FIRST_GAP * self.costs.plain_steps
        if self.costs.plain_is_doubtful:
            return FIRST_GAP
        return anchor_gap(self.value(self._depth) / self.value(0) - 1)

    def _learn_reading(self, cycle: Cycle) -> float:
        """Seconds of the cycle in which the draft model only caught up: no depth could have avoided them."""
        drawn = self._stopper.drawn if self._stopper else cycle.drafted
        if self._unread > LAG:
            reading = max(cycle.draft_seconds - self.costs.draft(drawn), 0.0)
            self._reading_seconds = reading / self._unread
            return reading
        if drawn:
            self.costs.learn_draft(drawn, cycle.draft_seconds)
        return 0.0

    def _learn_drafting(self, cycle: Cycle, seconds: float, confidences: tuple[float, ...]) -> None:
        emitted = len(cycle.tokens)
        dropped = self._stopper.dropped if self._stopper else None
        self.hazards.learn(cycle.drafted, cycle.accepted, emitted, dropped)
        if self.confidence is not None:
            self.confidence.learn(confidences, cycle.accepted, emitted)
        seconds = min(seconds, WILD * self.costs.cycle(max(cycle.drafted, 1)))
        self._ledger.learn(seconds, emitted, self.costs.verify(1))
        self._speeds.learn(seconds, emitted)
        self._stopper = None

    def _consider_switching_off(self, *, drafted: bool) -> None:
        if self._ledger.in_credit:
            self._patience = 1.0
        if drafted:
            hopeless = self.value(self.best_depth(OPTIMISM), OPTIMISM) < self.value(0)
            self._hopeless = self._hopeless + 1 if hopeless else 0
        enough = 1 if self.costs.measured else HOPELESS_CYCLES
        if self._hopeless >= enough or self._ledger.broken:
            self.on, self._probing, self._tokens_off, self._hopeless = False, False, 0, 0

    def _learn_off(self, tokens: int, seconds: float, *, drafted: bool) -> None:
        plain = self.costs.verify(1)
        failure = max(self.costs.cycle(self.depths[0]) / plain - 1, 0.02)
        if self._probing:
            if drafted:
                self._probe_balance += tokens - seconds / plain
                self._judge_probe(failure)
            return
        self._tokens_off += tokens
        each = READING * self.costs.draft(1) if self._reading_seconds is None else self._reading_seconds
        reading = self._unread * each / plain
        if self._tokens_off * PROBE_SHARE >= self._patience * PROBE_FAILURES * failure + reading:
            self._probing, self._probe_balance = True, 0.0

    def _judge_probe(self, failure: float) -> None:
        """A probe that wins goes on until it convinces; one that has lost what it may lose is over."""
        if self._probe_balance > 0 and self.value(self.best_depth()) > self.value(0):
            self.on, self._depth = True, self.depths[0]
            self._ledger.probation()
        elif self._probe_balance <= -(PROBE_FAILURES - 0.5) * failure:
            self._patience = min(self._patience * PATIENCE_GROWTH, MOST_PATIENCE)
        else:
            return
        self._probing, self._tokens_off = False, 0

    @property
    def why_off(self) -> str | None:
        if self.on:
            return None
        depth = self.best_depth()
        kept, share = self.hazards.pooled, self.costs.draft(1) / self.costs.verify(1)
        return (
            f"Drafting is off: about {self.value(depth):.1f} tokens/s at depth {depth} against "
            f"{self.value(0):.1f} without. The target keeps {kept:.0%} of the draft's tokens, "
            f"and each costs {share:.0%} of a plain step."
        )


def anchor_gap(gain: float) -> float:
    """Tokens between two plain steps, for a share of the time that they gain on them: a step costs the gain."""
    return min(max(ANCHOR_TOKENS, gain / ANCHOR_SHARE), MOST_ANCHOR_TOKENS)


class Speeds:
    """Tokens per second of the latest drafting cycles: about 64 of them."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    @property
    def mean(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    def learn(self, seconds: float, tokens: int) -> None:
        self._tokens += (tokens - self._tokens) / 64
        self._seconds += (seconds - self._seconds) / 64
