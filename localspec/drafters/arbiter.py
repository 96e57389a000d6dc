"""Who drafts in the coming cycle: lookup, the draft model or nobody, by tokens per second."""

from collections.abc import Sequence
from dataclasses import replace

from localspec.drafters.lookup import Guess, LookupDrafter, proposal_of
from localspec.drafters.model import ModelDrafter
from localspec.events import Cycle, Mode, Source
from localspec.speculation.costs import Costs
from localspec.speculation.depth import Auto, anchor_gap
from localspec.speculation.ledger import Ledger
from localspec.speculation.protocols import Proposal

ADVANTAGE = 1.02  # a guess must promise this much more than the alternative
REST_TOKENS = 256  # lookup stays out for so long after it has cost more than its ledger allows
LOOKUP_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 11, 15, 23, 31)


class Arbiter:
    """The strategy that users get: every cycle it takes the proposal with the highest value per second."""

    def __init__(
        self,
        costs: Costs,
        *,
        model: ModelDrafter | None,
        auto: Auto | None,
        lookup: LookupDrafter | None,
        most: int,
    ) -> None:
        """`auto` decides for `model`: both or neither. `most`: draft tokens that fit into a verify batch."""
        assert (model is None) == (auto is None)
        self._costs = costs
        self._model = model
        self._auto = auto
        self._lookup = lookup
        self._depths = tuple(d for d in LOOKUP_DEPTHS if d <= most)
        self._most = most
        self._ledger = Ledger()
        self._rest = 0  # tokens until lookup may draft again
        self._tokens_since_plain = 0
        self._proposal = Proposal()

    @property
    def busy_seconds(self) -> float:
        return self._model.busy_seconds if self._model else 0.0

    @property
    def why_off(self) -> str | None:
        return self._auto.why_off if self._auto else None

    @property
    def plain_step_seconds(self) -> float | None:
        return self._costs.plain_step_seconds

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        room = min(room, self._most)
        self._proposal = self._from_lookup(tokens, room) or self._from_model(tokens, room)
        return self._proposal

    def settle(self, tokens: Sequence[int]) -> None:
        if self._model:
            self._model.settle(tokens)
        if self._lookup:
            self._lookup.settle(tokens)

    def learn(self, cycle: Cycle) -> None:
        by_lookup = cycle.source is Source.LOOKUP
        if self._lookup:
            self._lookup.learn(cycle.tokens)
        if self._auto and by_lookup:
            self._auto.learn_elsewhere(cycle)
        elif self._auto:
            self._auto.learn(cycle, self._proposal.confidences)
        else:
            self._costs.learn_verify(cycle.width, cycle.verify_seconds + cycle.other_seconds)
        if by_lookup:
            self._guard(cycle)
        else:
            self._rest = max(self._rest - len(cycle.tokens), 0)
        self._tokens_since_plain = 0 if cycle.is_plain else self._tokens_since_plain + len(cycle.tokens)

    def _from_lookup(self, tokens: Sequence[int], room: int) -> Proposal | None:
        """What lookup offers, if it beats both the model's promise and plain decoding."""
        if self._lookup is None:
            return None
        guess = self._lookup.find(tokens, room)
        depth, value = best_prefix(guess, self._depths, self._costs)
        if not depth or self._rest:
            return None
        plain = 1 / self._costs.verify(1)
        promised = self._auto.plan(room, self._unread(tokens)).value if self._auto else 0.0
        if value <= ADVANTAGE * max(promised, plain):
            return None
        if self._tokens_since_plain >= anchor_gap(value / plain - 1):
            return Proposal(mode=Mode.ANCHOR)
        return proposal_of(guess, depth)

    def _from_model(self, tokens: Sequence[int], room: int) -> Proposal:
        if self._model is None or self._auto is None:
            return Proposal()
        plan = self._auto.plan(room, self._unread(tokens))
        if not plan.depth:
            return Proposal(mode=plan.mode)
        proposal = self._model.propose(tokens, plan.depth, self._auto.stopping(plan))
        if not proposal.depth:
            # Its context is full, or it failed: it drafts no more in this reply, and its promises end here.
            self._auto = None
            return Proposal()
        return replace(proposal, depth=plan.depth, mode=plan.mode)

    def _unread(self, tokens: Sequence[int]) -> int:
        """Tokens that the draft model has to read before it drafts, the newest one aside."""
        return len(tokens) - 1 - self._model.length if self._model else 0

    def _guard(self, cycle: Cycle) -> None:
        self._ledger.learn(cycle.seconds, len(cycle.tokens), self._costs.verify(1))
        if self._ledger.broken:
            self._rest = REST_TOKENS
            self._ledger.probation()


def best_prefix(guess: Guess, depths: Sequence[int], costs: Costs) -> tuple[int, float]:
    """How much of a guess to propose, and the tokens per second that this promises; (0, 0.0) for none."""
    best, best_value = 0, 0.0
    expected, survival, depth = 1.0, 1.0, 0
    for allowed in depths:
        allowed = min(allowed, len(guess.tokens))
        while depth < allowed:
            survival *= guess.chances[depth]
            expected += survival
            depth += 1
        if depth and expected / costs.verify(depth + 1) > best_value:
            best, best_value = depth, expected / costs.verify(depth + 1)
        if depth == len(guess.tokens):
            break
    return best, best_value
