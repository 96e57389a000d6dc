"""Who drafts in the coming cycle: any of the drafters or nobody, by tokens per second."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode
from localspec.passes import Pass
from localspec.speculation.costs import Costs
from localspec.speculation.depth import DepthControl
from localspec.speculation.protocols import Drafter, Proposal, Rule

ADVANTAGE = 1.02  # tokens that cost nothing to draft must promise this much more than the alternatives
ANCHOR_TOKENS = 48  # plain steps come at most so often
ANCHOR_SHARE = 0.003  # and take at most this share of time
MOST_ANCHOR_TOKENS = 1024  # however large the gain: it may be large because a plain step was measured wrongly
FIRST_ANCHORS, FIRST_GAP = 2, 24  # with no measured table: so many plain steps soon, so many tokens apart


@dataclass(frozen=True, slots=True)
class Contender:
    """A drafter, and what has been learned about when it pays."""

    drafter: Drafter
    control: DepthControl

    @property
    def is_free(self) -> bool:
        """Whether it proposes at no cost; the confidences of such a proposal are the chances of its tokens."""
        return self.drafter.steps(1) == 0


@dataclass(frozen=True, slots=True)
class Offer:
    """What a drafter promises for the coming cycle."""

    contender: Contender
    value: float  # tokens per second
    proposal: Proposal | None = None  # None: it has yet to be drafted


class Arbiter:
    """The strategy that users get: every cycle it takes the proposal with the highest value per second."""

    def __init__(self, costs: Costs, contenders: Sequence[Contender], rule: Rule) -> None:
        self._costs = costs
        self._contenders = contenders
        self._rule = rule
        self._tokens_since_plain = 0
        self._chosen: Contender | None = None  # whose cycle this is
        self._proposal = Proposal()
        self._reading_seconds = 0.0  # of this cycle
        for contender in contenders:
            contender.drafter.begin()
            contender.control.begin()

    @property
    def busy_seconds(self) -> float:
        return sum(contender.drafter.busy_seconds for contender in self._contenders)

    @property
    def why_off(self) -> str | None:
        """Of the first drafter that is not free, while none of these drafts."""
        reasons = [c.control.why_off for c in self._contenders if not c.is_free]
        return reasons[0] if reasons and all(reasons) else None

    @property
    def failure(self) -> LocalspecError | None:
        failures = (contender.drafter.failure for contender in self._contenders)
        return next((failure for failure in failures if failure), None)

    @property
    def plain_step_seconds(self) -> float | None:
        return self._costs.plain_step_seconds

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        self._chosen, self._reading_seconds = None, 0.0
        self._proposal = self._proposed(tokens, room)
        return self._proposal

    def follow(self, passed: Pass, kept: int) -> None:
        for contender in self._contenders:
            contender.drafter.follow(passed, kept)

    def learn(self, cycle: Cycle) -> None:
        if cycle.width > 1 or cycle.is_plain:
            self._costs.learn_verify(cycle.width, cycle.verify_seconds + cycle.other_seconds)
        self._tokens_since_plain = 0 if cycle.is_plain else self._tokens_since_plain + len(cycle.tokens)
        for contender in self._contenders:
            if contender is self._chosen:
                drafting_seconds = cycle.draft_seconds - self._reading_seconds
                contender.control.learn(
                    replace(cycle, draft_seconds=drafting_seconds), self._proposal.confidences
                )
            else:
                contender.control.save(len(cycle.tokens))

    def _proposed(self, tokens: Sequence[int], room: int) -> Proposal:
        best = max(self._offers(tokens, room), key=lambda offer: offer.value, default=None)
        plain = 1 / self._costs.verify(1)
        if best is None or best.value < plain:
            return Proposal(mode=Mode.OFF if self.why_off else Mode.DRAFTING)
        if self._tokens_since_plain >= self._anchor_gap(best.value / plain - 1):
            return Proposal(mode=Mode.ANCHOR)
        self._chosen = best.contender
        return best.proposal or self._drafted(best.contender, tokens, room)

    def _offers(self, tokens: Sequence[int], room: int) -> Iterator[Offer]:
        for contender in self._contenders:
            drafter, control = contender.drafter, contender.control
            reading = drafter.reading(tokens)
            control.reconsider(reading)
            if contender.is_free:
                proposal = drafter.propose(tokens, room, self._rule)
                depth, value = best_prefix(proposal.confidences, control.depths, self._costs)
                if depth and control.on:
                    yield Offer(contender, value / ADVANTAGE, shortened(proposal, depth))
            elif drafter.failure is None and control.limit(room) and control.window(reading) is not None:
                yield Offer(contender, control.rate)

    def _drafted(self, contender: Contender, tokens: Sequence[int], room: int) -> Proposal:
        """What a drafter proposes that is not free; nothing while it has more to read than one cycle allows."""
        drafter, control = contender.drafter, contender.control
        if not self._caught_up(drafter, control, tokens):
            self._chosen = None
            return Proposal(mode=control.mode)
        limit = control.limit(room)
        proposal = drafter.propose(tokens, limit, self._rule, control.stopping(limit))
        if not proposal.depth:  # it failed
            self._chosen = None
            return Proposal()
        return replace(proposal, depth=limit, mode=control.mode)

    def _caught_up(self, drafter: Drafter, control: DepthControl, tokens: Sequence[int]) -> bool:
        """Let a drafter read what it lacks, as far as one cycle allows; whether that was all."""
        reading = drafter.reading(tokens)
        window = control.window(reading)
        assert window is not None, "only drafters that can pay for it are chosen"
        if window != reading.window:
            drafter.restart(tokens, window)
        elif not reading.unread:
            return True
        busy = drafter.busy_seconds
        read = drafter.read(tokens, control.chunk)
        self._reading_seconds = drafter.busy_seconds - busy
        control.learn_reading(read, self._reading_seconds)
        return not drafter.reading(tokens).unread

    def _anchor_gap(self, gain: float) -> float:
        """Tokens between two plain steps, for a share of the time that they gain on them: a step costs the gain."""
        costs = self._costs
        if not costs.measured and costs.plain_steps < FIRST_ANCHORS:
            return FIRST_GAP * costs.plain_steps
        if costs.plain_is_doubtful:
            return FIRST_GAP
        return min(max(ANCHOR_TOKENS, gain / ANCHOR_SHARE), MOST_ANCHOR_TOKENS)


def best_prefix(chances: Sequence[float], depths: Sequence[int], costs: Costs) -> tuple[int, float]:
    """How many tokens to propose of those with these chances, and the tokens per second that this promises.

    `depths`: the numbers of tokens that may be proposed, ascending; fewer where there are no more. (0, 0.0) for none.
    """
    best, best_value = 0, 0.0
    expected, survival, depth = 1.0, 1.0, 0
    for allowed in depths:
        allowed = min(allowed, len(chances))
        while depth < allowed:
            survival *= chances[depth]
            expected += survival
            depth += 1
        if depth and expected / costs.verify(depth + 1) > best_value:
            best, best_value = depth, expected / costs.verify(depth + 1)
        if depth == len(chances):
            break
    return best, best_value


def shortened(proposal: Proposal, depth: int) -> Proposal:
    """The first tokens of a proposal."""
    return replace(
        proposal,
        tokens=proposal.tokens[:depth],
        q=proposal.q[:depth],
        confidences=proposal.confidences[:depth],
        depth=depth,
    )
