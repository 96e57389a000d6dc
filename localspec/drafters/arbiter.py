"""Chooses who drafts in the next cycle, one of the drafters or nobody, by tokens per second."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from time import perf_counter

from localspec.algorithm.protocols import Drafter, PlainStep, Proposal, Rule, Stopping, Strategy
from localspec.control.company import BACKGROUND, Company, Seat, SharedCosts
from localspec.control.cost_table import CostTable
from localspec.control.costs import Costs, CostsByContext
from localspec.control.depth import DepthControl, PassCosts, Stopper
from localspec.drafters.prediction import PredictionDrafter
from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode
from localspec.sampler.passes import Pass

READING_CHUNK = 128  # tokens that a drafter catches up on at once


class Seated(Strategy):
    """A strategy that the other replies of its company reckon with."""

    def __init__(self, seat: Seat, company: Company | None) -> None:
        """`company`: none if it is always alone."""
        self._company = company or Company(CostsByContext([CostTable((1,), (1.0,))]))
        self._costs = self._company.places.costs  # of this cycle
        self._seat = seat
        self._shared: SharedCosts | None = None  # the prices of this cycle, among several replies

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        with self._company.lock:
            self._shared = self._company.ask(self._seat, len(tokens))
            self._costs = self._company.places.costs
        busy = self.busy_seconds
        proposal = self.proposed(tokens, room)
        with self._company.lock:
            self._seat.ready(len(proposal.tokens) + 1, self.busy_seconds - busy)
        return proposal

    def learn(self, cycle: Cycle) -> None:
        if self._shared:
            with self._company.lock:
                self._company.learn(self._seat, cycle)

    def end(self) -> None:
        self._company.leave(self._seat)

    def proposed(self, tokens: Sequence[int], room: int) -> Proposal:
        """The proposal, at these prices."""
        raise NotImplementedError


class Plain(Seated):
    """Plain decoding: the proposal is always empty."""

    def __init__(self, readers: Sequence[Drafter] = (), company: Company | None = None) -> None:
        """`readers` still follow the text: a head cannot read it later."""
        super().__init__(Seat(given=0), company)
        self._readers = readers

    @property
    def busy_seconds(self) -> float:
        return sum(reader.busy_seconds for reader in self._readers)

    def proposed(self, tokens: Sequence[int], room: int) -> Proposal:
        return Proposal(mode=Mode.PLAIN)

    def observe(self, batch: Pass, kept: int) -> None:
        for reader in self._readers:
            reader.observe(batch, kept)


class Fixed(Seated):
    """A fixed depth, with plain steps while the drafter reads tokens of another one.

    Likely tokens of a prediction go first, at any depth: they depend on the text alone.
    """

    def __init__(
        self,
        drafter: Drafter,
        depth: int,
        rule: Rule,
        prediction: PredictionDrafter | None = None,
        most: int = 0,
        company: Company | None = None,
    ) -> None:
        """`most`: tokens that may be proposed from the prediction."""
        super().__init__(Seat(given=depth), company)
        self._drafter = drafter
        self._prediction = prediction
        self._most = most
        self._depth = depth
        self._rule = rule

    @property
    def busy_seconds(self) -> float:
        return self._drafter.busy_seconds

    @property
    def failure(self) -> LocalspecError | None:
        return self._drafter.failure

    def catch_up(self, tokens: Sequence[int]) -> Iterator[None]:
        """Read all of it: the drafter's earlier reading must not affect a seeded reply."""
        while self._depth and self._drafter.backlog(tokens).unread:
            self._read(tokens)
            yield

    def proposed(self, tokens: Sequence[int], room: int) -> Proposal:
        if self._prediction:
            found = self._prediction.likely(tokens, min(self._most, room))
            if found.tokens:
                return found
        depth = min(self._depth, room)
        if depth and self._drafter.backlog(tokens).unread:
            busy = self._drafter.busy_seconds
            self._read(tokens)
            return Proposal(reading_seconds=self._drafter.busy_seconds - busy)
        return self._drafter.propose(tokens, depth, self._rule) if depth else Proposal()

    def observe(self, batch: Pass, kept: int) -> None:
        self._drafter.observe(batch, kept)

    def _read(self, tokens: Sequence[int]) -> None:
        self._drafter.read(tokens, READING_CHUNK)


def best_depth(costs: Costs, chance: float, price: Callable[[int], float], depths: Sequence[int]) -> int:
    """The depth with the most tokens per second if each draft token is kept with this chance; 0 is plain.

    `price`: seconds of drafting by depth. Leviathan et al., "Fast inference from transformers via speculative
    decoding", section 3: depth d brings 1 + chance + ... + chance ** d tokens.
    """

    def rate(depth: int) -> float:
        if not depth:
            return 1 / costs.verify(1)
        tokens = sum(chance**kept for kept in range(depth + 1))
        return tokens / (costs.verify(depth + 1) + price(depth))

    return max((0, *depths), key=rate)


ADVANTAGE = 1.02  # tokens that cost nothing to draft must promise this much more than the alternatives


@dataclass(frozen=True, slots=True)
class Offer:
    """A drafter's promise for the next cycle."""

    control: DepthControl
    value: float  # tokens per second
    proposal: Proposal | None = None  # None: it has yet to be drafted,
    limit: int = 0  # tokens at most


class Arbiter(Seated):
    """The strategy that users get: every cycle it takes the proposal with the highest value per second."""

    def __init__(
        self, company: Company, contenders: Sequence[DepthControl], rule: Rule, *, background: bool = False
    ) -> None:
        """`company`: of the replies that share passes; `background`: nobody waits for this one."""
        super().__init__(Seat(BACKGROUND if background else 1.0), company)
        self._contenders = contenders
        self._rule = rule
        self._chosen: DepthControl | None = None  # whose cycle this is
        self._proposal = Proposal()
        for contender in contenders:
            contender.drafter.begin()
            contender.begin()

    @property
    def busy_seconds(self) -> float:
        return sum(contender.drafter.busy_seconds for contender in self._contenders)

    @property
    def why_off(self) -> str | None:
        """Why drafting is off, from the first model-based drafter; None while any drafts."""
        reasons = [c.why_off for c in self._contenders if not c.is_free]
        return reasons[0] if reasons and all(reasons) else None

    @property
    def failure(self) -> LocalspecError | None:
        failures = (contender.drafter.failure for contender in self._contenders)
        return next((failure for failure in failures if failure), None)

    @property
    def plain_step(self) -> PlainStep:
        return PlainStep(self._costs.plain_step_seconds, self._costs.replies)

    def proposed(self, tokens: Sequence[int], room: int) -> Proposal:
        began = perf_counter()
        with self._company.lock:
            self._chosen = None
            found = self._decided(tokens, room)
        deciding_seconds = perf_counter() - began
        proposal = found if isinstance(found, Proposal) else self._drafted(found, tokens)
        padding = self._prices.padding(len(proposal.tokens) + 1) if proposal.depth else 0
        self._proposal = replace(proposal, padding=padding, deciding_seconds=deciding_seconds)
        return self._proposal

    def observe(self, batch: Pass, kept: int) -> None:
        for contender in self._contenders:
            contender.drafter.observe(batch, kept)

    def learn(self, cycle: Cycle) -> None:
        with self._company.lock:
            cycle = cycle if self._shared else self._company.without_waits(cycle)
            seconds = self._learn_costs(cycle)
            for contender in self._contenders:
                if contender is self._chosen:
                    drafting_seconds = cycle.draft_seconds - cycle.reading_seconds
                    contender.learn(
                        replace(cycle, draft_seconds=drafting_seconds), self._proposal, shared_seconds=seconds
                    )
                else:
                    contender.save(len(cycle.tokens), self._shared is not None)
            if self._shared:
                drafting = [c for c in self._contenders if not c.is_free and c.drafter.failure is None]
                self._seat.survivals = drafting[0].survivals() if drafting else ()
                self._seat.step_seconds = drafting[0].seconds(1) if drafting else 0.0

    def _learn_costs(self, cycle: Cycle) -> float | None:
        """Learn what the cycle's pass cost; the seconds that the cycle counts for, if it was shared."""
        if self._shared:
            return self._company.learn(self._seat, cycle)
        if cycle.replies == 1:
            self._costs.learn_verify(
                cycle.width + self._proposal.padding,
                cycle.verify_seconds + cycle.other_seconds,
                drafted=not cycle.is_plain,
                deciding_seconds=cycle.deciding_seconds,
            )
            self._company.anchors.learn(cycle, self._costs)
            return None
        return self._costs.verify(cycle.width) + cycle.draft_seconds  # a prompt shared the pass

    @property
    def _prices(self) -> PassCosts:
        return self._shared or self._costs

    def _decided(self, tokens: Sequence[int], room: int) -> Proposal | Offer:
        """The proposal, or the offer to draft."""
        best = max(self._offers(tokens, room), key=lambda offer: offer.value, default=None)
        plain = 1 / self._costs.verify(1)
        if best is None or best.value < plain:
            return Proposal(mode=Mode.OFF if self.why_off else Mode.DRAFTING)
        anchors = self._company.anchors
        if self._company.anchor if self._shared else anchors.due(self._costs, best.value / plain - 1):
            return Proposal(mode=Mode.ANCHOR)
        self._chosen = best.control
        return best.proposal or best

    def _offers(self, tokens: Sequence[int], room: int) -> Iterator[Offer]:
        for control in self._contenders:
            drafter = control.drafter
            reading = drafter.backlog(tokens)
            control.reconsider(reading)
            if control.is_free:
                proposal = drafter.propose(tokens, room, self._rule)
                depth, value = best_prefix(
                    proposal.confidences, control.depths, self._shared or self._costs.to_propose()
                )
                if depth and control.on:
                    yield Offer(control, value / ADVANTAGE, replace(proposal.first(depth), depth=depth))
            elif (
                drafter.failure is None
                and (limit := control.limit(room))
                and (self._shared is None or self._seat.depth)
                and control.window(reading) is not None
            ):
                yield Offer(control, control.rate, limit=limit)

    def _drafted(self, offer: Offer, tokens: Sequence[int]) -> Proposal:
        """The proposal of a model-based drafter; empty while it has more to read than one cycle allows."""
        control, limit = offer.control, offer.limit
        caught_up, reading_seconds = caught_up_with(control, tokens)
        if not caught_up:
            self._chosen = None
            return Proposal(mode=control.mode, reading_seconds=reading_seconds)
        proposal = control.drafter.propose(tokens, limit, self._rule, self._stopping(control, limit))
        if not proposal.depth:  # it failed
            self._chosen = None
            return Proposal(reading_seconds=reading_seconds)
        return replace(proposal, depth=limit, mode=control.mode, reading_seconds=reading_seconds)

    def _stopping(self, control: DepthControl, limit: int) -> Stopping:
        stopper = control.stopping(limit)
        if not self._shared:
            return stopper
        company, prices = self._company, self._shared
        with company.lock:
            rate = company.rate(self._seat)
        return Shared(
            replace(
                stopper, costs=prices, price=lambda depth: prices.drafting(control.seconds, depth), rate=rate
            ),
            company.lock,
        )


@dataclass(frozen=True, slots=True)
class Shared(Stopping):
    """A stopper whose costs another reply may be teaching."""

    stopper: Stopper
    lock: RLock

    def keeps(self, confidence: float, drafted: int) -> bool:
        with self.lock:
            return self.stopper.keeps(confidence, drafted)

    def goes_on(self, drafted: int) -> bool:
        with self.lock:
            return self.stopper.goes_on(drafted)


def caught_up_with(control: DepthControl, tokens: Sequence[int]) -> tuple[bool, float]:
    """Let a drafter read unread text, as far as one cycle allows: whether that was all, and the seconds."""
    drafter = control.drafter
    reading = drafter.backlog(tokens)
    window = control.window(reading)
    assert window is not None, "only drafters that can pay for it are chosen"
    if window != reading.window:
        drafter.restart(tokens, window)
    elif not reading.unread:
        return True, 0.0
    busy = drafter.busy_seconds
    read = drafter.read(tokens, control.chunk)
    seconds = drafter.busy_seconds - busy
    control.learn_reading(read, seconds)
    return not drafter.backlog(tokens).unread, seconds


def best_prefix(chances: Sequence[float], depths: Sequence[int], costs: PassCosts) -> tuple[int, float]:
    """How many tokens with these chances to propose, and the promised tokens per second.

    `depths`: the allowed numbers of tokens, ascending. (0, 0.0) for none.
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
