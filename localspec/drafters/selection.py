"""The choice of a drafter for each cycle, or of plain decoding, by expected tokens per second."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import perf_counter

from localspec.algorithm.protocols import Drafter, PlainStep, Proposal, Rule, Strategy
from localspec.control.concurrent import ConcurrentReplies, SlotState, verify_among_others
from localspec.control.costs import TARGET, WIDE
from localspec.control.depth import DepthControl, DepthPlan
from localspec.drafters.copies import CopyDrafter
from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode, Source
from localspec.sampler.passes import ForwardPass

# If deciding for a plain step takes more than this share of the step, some plain steps follow without a decision.
DECIDING_SHARE = 0.01
MOST_SKIPPED = 32  # largest number of steps without a decision, so that a copy is not missed for long
PREFILL_CHUNK = 128  # largest number of tokens in one prefill of a drafter


class Plain(Strategy):
    def __init__(self, readers: Sequence[Drafter] = ()) -> None:
        """`readers`: drafters with a head. They must observe each pass, because its hidden rows are gone later."""
        self._readers = readers

    @property
    def busy_seconds(self) -> float:
        return sum(reader.busy_seconds for reader in self._readers)

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        return Proposal(mode=Mode.PLAIN)

    def observe(self, batch: ForwardPass, kept: int) -> None:
        for reader in self._readers:
            reader.observe(batch, kept)


class Fixed(Strategy):
    """A strategy with a fixed draft depth. It drafts nothing while the drafter prefills tokens that are new to it.

    It prefers draft tokens copied from the caller's prediction. Their number depends only on the text, so the same
    seed still gives the same reply.
    """

    def __init__(
        self, drafter: Drafter, depth: int, rule: Rule, predicted: Sequence[int] = (), most: int = 0
    ) -> None:
        """`predicted`: the prediction's tokens; `most`: the largest number of draft tokens in a proposal from it."""
        self._drafter, self._depth, self._rule = drafter, depth, rule
        self._prediction, self._most = CopyDrafter() if predicted else None, most
        if self._prediction:
            self._prediction.add((), predicted)

    @property
    def busy_seconds(self) -> float:
        return self._drafter.busy_seconds

    @property
    def failure(self) -> LocalspecError | None:
        return self._drafter.failure

    def sync(self, tokens: Sequence[int]) -> Iterator[None]:
        """Prefill the whole text, because a seeded reply must not depend on what the drafter has read before."""
        while self._depth and self._drafter.backlog(tokens).unread:
            self._drafter.read(tokens, PREFILL_CHUNK)
            yield

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        if self._prediction:
            proposal = self._prediction.propose(tokens, min(self._most, room))
            if proposal.tokens and proposal.source is Source.PREDICTION:
                return proposal
        depth = min(self._depth, room)
        if depth and self._drafter.backlog(tokens).unread:
            busy = self._drafter.busy_seconds
            self._drafter.read(tokens, PREFILL_CHUNK)
            return Proposal(prefill_seconds=self._drafter.busy_seconds - busy)
        return self._drafter.propose(tokens, depth, self._rule) if depth else Proposal()

    def observe(self, batch: ForwardPass, kept: int) -> None:
        self._drafter.observe(batch, kept)


@dataclass(frozen=True, slots=True)
class Expectation:
    control: DepthControl
    value: float  # expected tokens per second
    proposal: Proposal | None = None  # None: if chosen, the drafter drafts at most `limit` tokens
    limit: int = 0


class DrafterSelection(Strategy):
    """The default strategy: each cycle takes the proposal that should give the most tokens per second."""

    def __init__(self, concurrent: ConcurrentReplies, candidates: Sequence[DepthControl], rule: Rule) -> None:
        self._concurrent, self._candidates, self._rule = concurrent, candidates, rule
        self._costs = concurrent.buckets.costs  # costs of this cycle
        self._slot = SlotState()
        self._context_tokens = 0
        self._plan: DepthPlan | None = None  # None: this reply decides as if it were alone
        self._running = self._sharing = 1  # number of replies that ran, and that shared the latest pass
        self._chosen: DepthControl | None = None  # the drafter of this cycle
        self._proposal = Proposal()
        self._skipped = 0  # number of plain steps to come without a decision
        self._unused: int | None = None  # the first token of a copy that would pay, but exceeds the budget
        self._copyable = False  # whether the next token is probably a copy
        self._decides = True  # whether a decision was made for this cycle
        self._undecided = 0  # number of tokens of the plain steps since the last decision
        self._unread: ForwardPass | None = None  # the undecided steps as one pass, to observe later
        self._plain_seconds, self._plain_steps = 0.0, 0  # plain steps of this reply alone
        self._reads_rows = any(candidate.drafter.hidden_rows_needed for candidate in candidates)
        for candidate in candidates:
            candidate.drafter.begin()
            candidate.begin()

    @property
    def busy_seconds(self) -> float:
        return sum(candidate.drafter.busy_seconds for candidate in self._candidates)

    @property
    def why_off(self) -> str | None:
        """The reason why all drafters with a model are off; None while any of these drafters is on."""
        step = self._plain_seconds / max(self._plain_steps, 1)
        reasons = [c.why_off(step) for c in self._candidates if not c.is_free]
        return reasons[0] if reasons and all(reasons) else None

    @property
    def failure(self) -> LocalspecError | None:
        failures = (candidate.drafter.failure for candidate in self._candidates)
        return next((failure for failure in failures if failure), None)

    @property
    def plain_step(self) -> PlainStep:
        return PlainStep(self._costs.plain_step_seconds(self._sharing), self._sharing)

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        if self._skipped and self._sharing == 1:
            self._skipped -= 1
            self._decides = False
            self._context_tokens = len(tokens)
            return Proposal(mode=self._proposal.mode)
        self._observe_skipped()
        for candidate in self._candidates:
            candidate.save(self._undecided)
        self._decides, self._undecided = True, 0
        began = perf_counter()
        with self._concurrent.lock:
            self._move(len(tokens))
            self._plan = self._concurrent.plan(self._slot, self._costs, self._running)
        for candidate in self._candidates:
            candidate.plan = self._plan
        best = max(self._expectations(tokens, room), key=lambda expect: expect.value, default=None)
        plain = 1 / self._costs.verify(self._plan.replies if self._plan else 1)
        if best is None or best.value < plain:
            best, mode = None, Mode.OFF if self.why_off else Mode.DRAFTING
        else:
            gain = best.value / plain - 1
            probe = self._plan.is_probe if self._plan else self._concurrent.probes.due(self._costs, gain)
            best, mode = (None, Mode.BASELINE) if probe else (best, Mode.DRAFTING)
        deciding_seconds = perf_counter() - began
        if best is None and mode is not Mode.BASELINE and not self._copyable:
            self._skipped = min(int(deciding_seconds * plain / DECIDING_SHARE), MOST_SKIPPED)
        proposal = (best.proposal or self._drafted(best, tokens)) if best else Proposal(mode=mode)
        # A drafter that failed, or that must prefill more, returns a proposal of depth 0; then the cycle is plain.
        self._chosen = best.control if best and proposal.depth else None
        self._proposal = proposal._replace(deciding_seconds=deciding_seconds)
        return self._proposal

    def observe(self, batch: ForwardPass, kept: int) -> None:
        if not (self._decides or self._reads_rows) and kept == len(batch.tokens):
            before = self._unread or ForwardPass(batch.start, [])
            self._unread = ForwardPass(before.start, [*before.tokens, *batch.tokens])
            return
        self._observe_skipped()
        for candidate in self._candidates:
            candidate.drafter.observe(batch, kept)

    def _observe_skipped(self) -> None:
        if skipped := self._unread:
            self._unread = None
            for candidate in self._candidates:
                candidate.drafter.observe(skipped, len(skipped.tokens))

    def learn_prefill(self, batch: ForwardPass, seconds: float) -> None:
        if len(batch.tokens) >= WIDE:
            with self._concurrent.lock:
                costs = self._concurrent.buckets.at(batch.start)
                costs.learn_prefill(TARGET, len(batch.tokens), seconds)

    def learn(self, cycle: Cycle) -> None:
        self._running, self._sharing = cycle.running, cycle.replies
        if cycle.is_plain and cycle.replies == 1:
            self._plain_seconds += cycle.seconds - cycle.deciding_seconds
            self._plain_steps += 1
        if not self._decides and cycle.replies == 1:  # learn later, to save time
            self._undecided += len(cycle.tokens)
            return
        with self._concurrent.lock:
            self._learn(cycle)

    def _learn(self, cycle: Cycle) -> None:
        self._move(self._context_tokens)
        runs = self._proposal.runs or (self._chosen.drafter.model_runs(cycle.drafted) if self._chosen else 0)
        self._concurrent.learn(self._slot, cycle, self._costs, runs)
        for candidate in self._candidates:
            if candidate is self._chosen:
                drafting_seconds = cycle.draft_seconds - cycle.prefill_seconds
                candidate.learn(replace(cycle, draft_seconds=drafting_seconds), self._proposal)
            else:
                candidate.save(len(cycle.tokens))
                if candidate.is_free and self._unused is not None and cycle.is_plain:
                    candidate.judge(kept=cycle.tokens[0] == self._unused)
        if self._running > 1:
            models = (c for c in self._candidates if not c.is_free and c.drafter.failure is None)
            model = next(models, None)
            self._slot.expect(*((model.survivals(), model.seconds(1)) if model else ((), 0.0)), self._costs)

    def _move(self, context_tokens: int) -> None:
        self._context_tokens = context_tokens
        self._costs = self._concurrent.buckets.at(context_tokens)
        for candidate in self._candidates:
            candidate.costs = self._costs

    def _expectations(self, tokens: Sequence[int], room: int) -> Iterator[Expectation]:
        plan = self._plan
        verify = self._costs.verify_for_copies
        if plan:
            verify = partial(verify_among_others, self._costs, plan)
        for control in self._candidates:
            drafter = control.drafter
            reading = drafter.backlog(tokens)
            control.reconsider()
            if control.is_free:
                proposal = drafter.propose(tokens, min(room, control.most), self._rule)
                self._copyable = 2 * max(proposal.confidences[:1], default=0) > 1
                depth, value = best_prefix(proposal.confidences, control.affordable_seconds, verify)
                self._unused = None
                if depth:
                    yield Expectation(control, value, proposal.first(depth)._replace(depth=depth))
                elif best_prefix(proposal.confidences[:1], inf, verify)[1] > 1 / verify(1):
                    self._unused = proposal.tokens[0]
                continue
            limit = control.limit(min(room, plan.depth) if plan else room)
            if drafter.failure is None and limit and control.window(reading) is not None:
                promised = 1 + sum(control.survivals()[:limit])
                value = promised / self._costs.verify(plan.replies) if plan else control.rate
                yield Expectation(control, value, limit=limit)

    def _drafted(self, expect: Expectation, tokens: Sequence[int]) -> Proposal:
        """Return the proposal of a drafter with a model; an empty one while the drafter must prefill more."""
        control, drafter, limit, seconds = expect.control, expect.control.drafter, expect.limit, 0.0
        reading = drafter.backlog(tokens)
        window = control.window(reading)
        assert window is not None, "only drafters with a window are chosen"
        if window != reading.window:
            drafter.restart(tokens, window)
        if window != reading.window or reading.unread:
            busy = drafter.busy_seconds
            read = drafter.read(tokens, control.chunk)
            seconds = drafter.busy_seconds - busy
            with self._concurrent.lock:
                control.learn_prefill(read, seconds)
            if drafter.backlog(tokens).unread:
                return Proposal(mode=control.mode, prefill_seconds=seconds)
        proposal = drafter.propose(tokens, limit, self._rule, control.stopping(limit))
        depth, mode = (limit, control.mode) if proposal.depth else (0, proposal.mode)
        return proposal._replace(depth=depth, mode=mode, prefill_seconds=seconds)


def best_prefix(chances: Sequence[float], bound: float, verify: Callable[[int], float]) -> tuple[int, float]:
    """Return the draft depth with the most tokens per second, and this speed; (0, 0.0) if no depth is allowed.

    `chances`: each draft token's chance of acceptance. `bound`: the longest pass in seconds. `verify`: the seconds of a
    pass by its width. The width of a wide pass is a multiple of WIDE, so that only few widths must be measured.
    """
    best, best_value, expected, survival = 0, 0.0, 1.0, 1.0
    for depth, chance in enumerate(chances, start=1):
        survival *= chance
        expected += survival
        if depth >= WIDE and (depth + 1) % WIDE:
            continue
        seconds = verify(depth + 1)
        if seconds <= bound and expected / seconds > best_value:
            best, best_value = depth, expected / seconds
    return best, best_value
