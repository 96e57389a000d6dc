"""Whether to draft, and how much at most: by measured tokens per second, and not at all where drafting loses."""

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.events import Cycle, Mode
from localspec.speculation.chances import Chances
from localspec.speculation.costs import Costs
from localspec.speculation.hazards import Hazards
from localspec.speculation.ledger import Ledger
from localspec.speculation.probing import Probes
from localspec.speculation.stopping import Stopper

OPTIMISM = 1.0  # standard errors in drafting's favour before it is switched off
IDLE_CYCLES = 12  # in a row in which the first token was drawn and dropped
HOPELESS_CYCLES = 2  # in a row, with no measured table: one wild measurement switches nothing off
CAUTIOUS_DEPTH, TRUSTED = 3, 2  # the depth of an unknown draft until it has kept so many tokens
ANCHOR_TOKENS = 48  # plain steps come at most so often
ANCHOR_SHARE = 0.003  # and take at most this share of time
MOST_ANCHOR_TOKENS = 1024  # however large the gain: it may be large because a plain step was measured wrongly
FIRST_ANCHORS, FIRST_GAP = 2, 24  # with no measured table: so many plain steps soon, so many tokens apart
PROBED_DRAWS = 2  # tokens that a probe can draw and drop before it has failed
LEAST_STAKE = 0.04  # plain steps
WILD = 2.5  # a cycle this much slower than expected says something about the machine, not about drafting
CARRIED = 0.1  # what the speed of the reply before counts for
LAG = 8  # unread tokens from which on the first draft step is mostly reading
READING = 0.1  # reading a token among many / drafting one, until it was measured


@dataclass(frozen=True, slots=True)
class Plan:
    """The coming cycle: how many tokens to draft at most, why, and the tokens per second that this promises."""

    depth: int
    mode: Mode
    value: float


class Auto:
    """Drafts as much as the stopper says; switches drafting off where it loses, and back on.

    It outlives its replies: `begin` parts them. Costs are shared with whoever else learns them.
    """

    def __init__(self, costs: Costs, hazards: Hazards, chances: Chances, depths: Sequence[int]) -> None:
        self.costs = costs
        self.hazards = hazards
        self.chances = chances
        self.depths = tuple(sorted(depths))
        self.on = True
        self._ledger = Ledger()
        self._probes = Probes()
        self._speeds = Speeds()
        self._tokens_since_plain = 0
        self._unread = 0  # tokens that the draft model has yet to read before it can draft
        self._reading_seconds: float | None = None  # for one of them, once it was measured
        self._hopeless = 0  # drafting cycles in a row
        self._idle = 0  # drafting cycles in a row that proposed nothing
        self._values: dict[float, list[float]] = {}  # by optimism, until the next cycle
        self._stopper: Stopper | None = None

    def begin(self) -> None:
        """Another reply, perhaps of another kind: how the one before went counts for less."""
        self._values.clear()
        self._hopeless = self._idle = 0
        for learner in (self.hazards, self.chances, self._ledger, self._probes, self._speeds):
            learner.begin()

    def plan(self, room: int, unread: int = 0) -> Plan:
        """What to do with room for `room` draft tokens; the draft has `unread` tokens to catch up on."""
        self._unread = unread
        most, mode = self._most_and_mode()
        depth = max((d for d in self.depths if d <= min(most, room)), default=0)
        return Plan(depth, mode, self.value(min(depth, self.best_depth())))

    def stopping(self, plan: Plan) -> Stopper:
        """What ends the proposal of a plan."""
        # Shortly before the end of its room the run can no longer go on at its usual speed.
        usual = self._speeds.mean if plan.depth >= self.best_depth() else plan.value
        rate = max(self.value(0), usual)
        self._stopper = Stopper(self.chances, self.costs, rate=rate, depths=self.depths, limit=plan.depth)
        return self._stopper

    def learn(self, cycle: Cycle, confidences: tuple[float, ...] = ()) -> None:
        """A cycle that the draft model drafted, or a plain step."""
        self._values.clear()
        if cycle.width > 1 or cycle.is_plain:
            self.costs.learn_verify(cycle.width, cycle.verify_seconds + cycle.other_seconds)
        self._tokens_since_plain = 0 if cycle.is_plain else self._tokens_since_plain + len(cycle.tokens)
        seconds = cycle.seconds
        if cycle.depth:
            seconds -= self._learn_reading(cycle)
            seconds = min(seconds, WILD * self.costs.cycle(max(cycle.drafted, 1)))
            self._learn_drafting(cycle, seconds, confidences[: cycle.drafted])
        if not self.on:
            self._learn_off(cycle, seconds)
        elif cycle.depth:
            self._idle = 0 if cycle.drafted else self._idle + 1
            self._consider_switching_off()

    def learn_elsewhere(self, cycle: Cycle) -> None:
        """A cycle that another drafter drafted: it tells what batches cost; the draft model falls behind."""
        self._values.clear()
        self.costs.learn_verify(cycle.width, cycle.verify_seconds + cycle.other_seconds)
        self._tokens_since_plain += len(cycle.tokens)

    def value(self, depth: int, optimism: float = 0.0) -> float:
        """Tokens per second if every proposal had this depth; 0 is plain decoding."""
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

    def _most_and_mode(self) -> tuple[int, Mode]:
        most = self.depths[-1]
        if self.hazards.kept < TRUSTED:
            most = max(min(most, CAUTIOUS_DEPTH), self.depths[0])
        if not self.on:
            return (most, Mode.PROBE) if self._probes.probing else (0, Mode.OFF)
        if self._tokens_since_plain >= self._anchor_gap():
            return 0, Mode.ANCHOR
        return most, Mode.DRAFTING

    def _anchor_gap(self) -> float:
        if not self.costs.measured and self.costs.plain_steps < FIRST_ANCHORS:
            return FIRST_GAP * self.costs.plain_steps
        if self.costs.plain_is_doubtful:
            return FIRST_GAP
        return anchor_gap(self.value(self.best_depth()) / self.value(0) - 1)

    def _learn_reading(self, cycle: Cycle) -> float:
        """Seconds of the cycle in which the draft model only caught up, where that was much."""
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
        self.chances.learn(confidences, cycle.accepted, emitted)
        self._ledger.learn(seconds, emitted, self.costs.verify(1))
        self._speeds.learn(seconds, emitted)
        self._stopper = None

    def _consider_switching_off(self) -> None:
        plain = self.value(0)
        # Kept tokens by position know nothing of confidence, so what was measured has to agree with them.
        hopeless = self.value(self.best_depth(OPTIMISM), OPTIMISM) < plain and self._speeds.mean < plain
        self._hopeless = self._hopeless + 1 if hopeless else 0
        hopeless = self._hopeless >= (1 if self.costs.measured else HOPELESS_CYCLES)
        if hopeless or self._idle >= IDLE_CYCLES or self._ledger.broken:
            self.on, self._hopeless, self._idle = False, 0, 0
            self._probes.restart()

    def _learn_off(self, cycle: Cycle, seconds: float) -> None:
        plain, draft = self.costs.verify(1), self.costs.draft(1)
        stake = max(PROBED_DRAWS * draft / plain, LEAST_STAKE)
        if not self._probes.probing:
            each = READING * draft if self._reading_seconds is None else self._reading_seconds
            self._probes.save(len(cycle.tokens), stake, self._unread * each / plain)
        elif cycle.depth and self._probes.convinced(len(cycle.tokens) - seconds / plain, stake):
            self.on = True
            self._ledger.probation()
            self._speeds.restart()

    @property
    def why_off(self) -> str | None:
        if self.on:
            return None
        kept, share = self.hazards.pooled, self.costs.draft(1) / self.costs.verify(1)
        drafting, plain = self._speeds.mean, self.value(0)
        why = "lately it cost more than it saved"
        if drafting < plain:
            why = f"lately about {drafting:.1f} tokens/s with it against {plain:.1f} without"
        return (
            f"Drafting is off: {why}. The target keeps {kept:.0%} of the draft's tokens, "
            f"and each costs {share:.0%} of a plain step."
        )


def anchor_gap(gain: float) -> float:
    """Tokens between two plain steps, for a share of the time that they gain on them: a step costs the gain."""
    return min(max(ANCHOR_TOKENS, gain / ANCHOR_SHARE), MOST_ANCHOR_TOKENS)


class Speeds:
    """Tokens per second of the latest drafting cycles: about 64 of them."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget them."""
        self._tokens = self._seconds = 0.0

    @property
    def mean(self) -> float:
        """0 before anything was measured."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def begin(self) -> None:
        """Another reply."""
        self._tokens *= CARRIED
        self._seconds *= CARRIED

    def learn(self, seconds: float, tokens: int) -> None:
        self._tokens = self._tokens * 63 / 64 + tokens
        self._seconds = self._seconds * 63 / 64 + seconds
