"""The draft depth of one drafter. A budget, counted in plain steps, limits the time that drafting may lose."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf
from operator import mul

from localspec.algorithm.protocols import Backlog, Drafter, Proposal
from localspec.control.acceptance import AcceptanceModel
from localspec.control.costs import CAUTIOUS_DEPTH, SLACK, Costs
from localspec.control.timing import MEMORY, SEVERAL
from localspec.events import Cycle, Mode

SHARE = 0.003  # largest share of the time for steps that only measure a cost


class PlainProbes:
    """Single plain steps among drafting cycles, which measure the cost of plain decoding."""

    def __init__(self) -> None:
        self._tokens = 0  # number of tokens since the last plain step

    def due(self, costs: Costs, gain: float, replies: int = 1) -> bool:
        """Return whether the next step must be plain. `gain`: the expected relative gain in speed by drafting."""
        usual, steps = max(MEMORY, gain / SHARE), costs.measurements(replies)
        # If the first plain step is slow by chance, any draft looks fast. So the next plain steps come soon.
        return self._tokens >= (min(usual, SEVERAL**steps - 1) if costs.is_new(replies) else usual)

    def learn(self, tokens: int, *, is_plain: bool) -> None:
        self._tokens = 0 if is_plain else self._tokens + tokens


# Initial budget: a new drafter may lose the time of this many plain steps, or half as many if costs are estimates.
START = 1.75
MOST = 12.0  # largest budget, in plain steps
# Plain steps that drafting must save per token. Each token written without drafting adds this number to the budget.
MARGIN = 0.009
SURE = 0.95  # a draft that would save no time with this acceptance rate is tried only to measure its cost
TRIED = 8  # after a switch-off, drafting is on trial until this many draft tokens are accepted
LEAST_RATED = 8  # a message gives the acceptance rate of at least this many draft tokens
EVEN_FROM = 8  # longer drafts have an even number of tokens
CHUNK_SECONDS = 0.1  # longest prefill of a drafter in one cycle


def odd(depth: int) -> int:
    """Return 1 for an odd depth above EVEN_FROM, else 0. No draft ends there, because a check may end a good draft."""
    return depth % 2 if depth > EVEN_FROM else 0


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """The plan for the next cycle of a reply that shares its pass."""

    replies: int
    depth: int = 0  # largest draft depth of all replies
    gain: float = 1.0  # expected time of the cycle's tokens if replies take turns / in the shared cycle
    step_seconds: float = 0.0  # time of a draft step that all replies share
    is_probe: bool = False  # whether the next pass is plain only to measure the cost of a plain pass
    rate: float = 0.0  # number of tokens of this reply that are worth one second of all replies
    # Expected gain of each draft token by the other replies, in tokens of this reply.
    others: tuple[float, ...] = ()


@dataclass(slots=True)
class Stopper:
    """The `Stopping` rule of one cycle: it weighs the chance of another draft token against its cost.

    Another draft token is worth its time if its chance of acceptance exceeds `rate` times the seconds that it adds.
    `rate` is the reply's present tokens per second. This maximises tokens per second (a renewal-reward problem).
    """

    chances: AcceptanceModel
    verify: Callable[[int], float]  # returns the seconds of a target pass over a number of tokens
    cost: Callable[[int], float]  # returns the seconds of drafting a number of tokens
    rate: float
    most: int  # largest number of draft tokens in the proposal
    # Whether drafting is tried again after a switch-off: the first draft token is then verified in any case.
    # Without a verified token, the regression would never learn that drafting pays again.
    trying: bool = False
    others: Sequence[float] | None = None  # as in `DepthPlan`; None: no shared pass
    _survival: float = 1.0  # chance that all draft tokens so far are accepted

    def keeps(self, confidence: float, drafted: int) -> bool:
        chance = self.chances.of(confidence, drafted)
        if self.trying:
            chance = max(chance, self.chances.ahead(drafted))
        kept = odd(drafted) > 0 or self._pays(drafted, first=chance, draw_first=False)
        self._survival *= chance
        return kept or (drafted == 0 and (self.trying or self.others is not None))

    def goes_on(self, drafted: int) -> bool:
        first = self.chances.ahead(drafted)
        return odd(drafted) > 0 or self._pays(drafted, first=first, draw_first=True)

    def _pays(self, drafted: int, *, first: float, draw_first: bool) -> bool:
        """Return whether a larger depth pays: its expected accepted tokens exceed `rate` times the extra seconds."""
        won, survival = 0.0, self._survival * first
        spent = self.verify(drafted + 1) + self.cost(drafted if draw_first else drafted + 1)
        for depth in range(drafted + 1, self.most + 1):
            won += survival + sum((self.others or ())[depth - 1 : depth])
            if won - self.rate * (self.verify(depth + 1) + self.cost(depth) - spent) > 0:
                return True
            survival *= self.chances.ahead(depth)
        return False


class DepthControl:
    """The decisions on drafting and its depth for one drafter, over many replies.

    A bad drafter loses at most its budget: START plain steps, one more for each reply, and MARGIN for each token that
    is written without drafting. If no draft could pay, SHARE replaces MARGIN. The budget also limits each cycle: it
    must pay for the cycle if all draft tokens are rejected. A drafter without a model is never off. Its replies begin
    with a budget of START, or half of the budget that is left.
    """

    def __init__(self, costs: Costs, drafter: Drafter, chances: AcceptanceModel, most: int) -> None:
        """`costs`: the costs for the coming cycle; `most`: the largest number of draft tokens in a proposal."""
        self.costs, self.drafter, self.chances, self.most = costs, drafter, chances, most
        self.plan: DepthPlan | None = None  # None: the reply decides as if it were alone
        self.on = True
        self._budget = START if self.costs.measured else START / 2
        self._trying = 0  # number of tokens to accept until the trial after a switch-off ends; 0: no trial
        self._accepted = 0
        self._tokens = self._seconds = 0.0  # tokens and seconds of the latest drafting cycles
        self._drafted = self._kept = 0.0  # draft tokens, and accepted ones, of the latest drafting cycles
        self._could_pay = True  # the latest result of `_pays_if_sure`

    def begin(self) -> None:
        """Begin another reply: add a plain step to the budget, and forget the speed of the previous reply."""
        self.chances.begin()
        self._could_pay = self._pays_if_sure()
        more = min(self._budget + self._could_pay, MOST)
        self._budget = max(self._budget / 2, START) if self.is_free else more
        self._tokens = self._seconds = self._drafted = self._kept = 0.0

    @property
    def affordable_seconds(self) -> float:
        """The seconds of the longest cycle that the budget can pay if all its draft tokens are rejected."""
        return (1 + self._budget) * self.costs.verify(1) if self.plan is None else inf

    @property
    def is_free(self) -> bool:
        """Whether the drafter has no model. The confidences in its proposals are then chances of acceptance."""
        return self.drafter.model_runs(1) == 0

    def seconds(self, depth: int) -> float:
        return self.costs.draft(self.drafter.source, self.drafter.model_runs(depth))

    @property
    def mode(self) -> Mode:
        if not self.on:
            return Mode.OFF
        return Mode.PROBE if self._trying else Mode.DRAFTING

    @property
    def rate(self) -> float:
        """The tokens per second of the latest drafting cycles, with the speed of plain decoding as the floor."""
        measured = self._tokens / self._seconds if self._seconds else 0.0
        return max(measured, 1 / self.costs.verify(1))

    def limit(self, room: int) -> int:
        """Return the largest number of draft tokens in the next proposal, at most `room`; 0 while drafting is off."""
        most = self.most if self._accepted >= 2 else min(CAUTIOUS_DEPTH, self.most)
        if self._trying:  # a trial begins with cheap cycles, so that trials can be frequent
            most = min(most, 1 + TRIED - self._trying)
        limit = min(most, room) if self.on else 0
        deeper = bisect_right(range(2, limit + 1), self.affordable_seconds, key=self._cycle_seconds)
        limit = min(limit, 1 + deeper)
        return limit - odd(limit)

    def _cycle_seconds(self, depth: int) -> float:
        return self.costs.verify(depth + 1) + self.seconds(depth)

    def survivals(self) -> tuple[float, ...]:
        """Return the chances that the next 1, 2, ... draft tokens are all accepted, before any is drawn."""
        return tuple(accumulate(map(self.chances.ahead, range(self.limit(self.most))), mul))

    def stopping(self, limit: int) -> Stopper:
        """Return the rule that ends the next proposal. In a shared pass, each draft token adds one for every reply."""
        if plan := self.plan:
            replies, step = plan.replies, plan.step_seconds
            verify = cache(lambda width: self.costs.verify(replies * width))
            return Stopper(self.chances, verify, lambda n: n * step, plan.rate, limit, others=plan.others)
        # Cache the costs, because they do not change within a cycle.
        verify, cost = cache(self.costs.verify_for_proposal), cache(self.seconds)
        return Stopper(self.chances, verify, cost, self.rate, limit, self._trying > 0)

    def learn(self, cycle: Cycle, proposal: Proposal) -> None:
        """Learn from a cycle that drafted, and from its proposal. The cycle's time must not include prefill.

        In a planned shared pass, only acceptance is learned. In another shared pass, the time alone is estimated.
        """
        runs = proposal.runs or self.drafter.model_runs(cycle.drafted)
        emitted = len(cycle.tokens)
        if runs and cycle.replies == 1:
            self.costs.learn_draft(self.drafter.source, runs, cycle.draft_seconds)
        if not self.is_free:
            self.chances.learn(proposal.confidences[: cycle.drafted], cycle.accepted, emitted)
        self._accepted += cycle.accepted
        self._trying = max(self._trying - cycle.accepted, 0)
        if self.plan and cycle.replies > 1:
            return
        plain, runs_seconds = self.costs.verify(1), self.costs.draft(self.drafter.source, runs)
        expected = self.costs.verify(cycle.width) + runs_seconds
        spent = seconds = cycle.seconds if cycle.replies == 1 else expected
        if self.rate > 1 / plain:  # a single stall of the machine must not switch drafting off
            seconds = min(seconds, SLACK * expected)
        self._pay(seconds / plain - emitted * (1 - MARGIN))
        self._tokens = self._tokens * (1 - 1 / MEMORY) + emitted
        self._seconds = self._seconds * (1 - 1 / MEMORY) + spent
        self._drafted = self._drafted * (1 - 1 / MEMORY) + cycle.drafted
        self._kept = self._kept * (1 - 1 / MEMORY) + cycle.accepted

    def learn_prefill(self, tokens: int, seconds: float) -> None:
        self.costs.learn_prefill(self.drafter.source, tokens, seconds)
        self._pay(seconds * (self.plan.replies if self.plan else 1) / self.costs.verify(1))

    def save(self, tokens: int) -> None:
        """Refill the budget for tokens that were written without the drafter."""
        self._budget = min(self._budget + (MARGIN if self._could_pay else SHARE) * tokens, MOST)

    def judge(self, *, kept: bool) -> None:
        """Judge a copied token that the budget could not pay for. `kept`: whether the reply has this token.

        The budget changes as if this token had been drafted alone. Such gains refill the budget to START at most.
        """
        gain = kept + 1 - self.costs.verify(2) / self.costs.verify(1)
        self._budget = max(min(self._budget + gain, max(self._budget, START)), 0.0)

    def reconsider(self) -> None:
        """Switch drafting on again when the budget pays for two draft steps."""
        if not self.on and self._budget >= 2 * self.seconds(1) / self.costs.verify(1):
            self.on, self._trying = True, TRIED
            self._tokens = self._seconds = self._drafted = self._kept = 0.0
            self.chances.doubt()

    def window(self, reading: Backlog) -> int | None:
        """Return how many newest tokens the drafter's cache should contain; None if the budget allows no prefill."""
        affordable = int(self._budget / 2 * self.costs.verify(1) / self._token_seconds)
        here, whole = reading.window, reading.window + reading.older
        if reading.older and affordable >= min(2 * here, whole):
            return min(affordable, whole)
        if reading.unread <= affordable:
            return here
        return affordable or None

    @property
    def chunk(self) -> int:
        """The largest number of tokens that the drafter may prefill in one cycle."""
        return max(int(CHUNK_SECONDS / self._token_seconds), 1)

    def why_off(self, step: float) -> str | None:
        """Return a sentence for the user while drafting is off; None while it is on.

        `step`: the mean seconds of the reply's plain steps, slow outliers included; 0.0 if there are none.
        """
        if self.on:
            return None
        # Each cycle also emits a token of the target, for which plain decoding would take a plain step.
        drafted, cycles = self._drafted or 1.0, self._tokens - self._kept
        step = max(step, self.costs.verify(1))
        rate, cost = self._kept / drafted, (self._seconds / step - cycles) / drafted
        too_few = self._drafted < (LEAST_RATED if rate else 2)
        if too_few or SLACK * rate >= cost:  # the reply's own numbers do not explain why drafting is off
            return "Drafting is off, because the times measured so far show no gain from it."
        return (
            f"Drafting is off: lately {rate:.0%} of the draft tokens were accepted, but each took "
            f"{cost:.0%} of the time of a token without drafting."
        )

    @property
    def _token_seconds(self) -> float:
        return self.costs.reading(self.drafter.source) or self.costs.verify(1)

    def _pay(self, steps: float) -> None:
        """Subtract a loss in plain steps from the budget, or add a gain. A budget below 0 switches drafting off."""
        self._budget = min(self._budget - steps, MOST)
        if self._budget < 0 and self.is_free:
            self._budget = 0.0
        elif self._budget < 0:
            # The budget stays at -1 or more, because one expensive cycle must not delay the next try for long.
            self.on, self._trying, self._budget = False, 0, max(self._budget, -1.0)
            self._could_pay = self._pays_if_sure()

    def _pays_if_sure(self) -> bool:
        """Return whether drafting would save time at the acceptance rate SURE; True while costs are unknown."""
        tokens, plain = [*accumulate(SURE**depth for depth in range(self.most + 1))], self.costs.verify(1)
        return not self.costs.knows(self.drafter.source) or any(
            tokens[depth] * plain > self._cycle_seconds(depth) for depth in range(1, self.most + 1)
        )
