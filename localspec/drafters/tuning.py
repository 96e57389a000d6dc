"""What a pair has taught about itself, shared by all its replies and carried over to the next run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.drafters.arbiter import Arbiter
from localspec.drafters.lookup import LookupDrafter
from localspec.drafters.lookup_index import FixedIndex
from localspec.drafters.lookup_trust import Trust, TrustCounts
from localspec.drafters.model import ModelDrafter
from localspec.speculation.chances import Chances, ChanceWeights
from localspec.speculation.costs import Costs, CostTable
from localspec.speculation.depth import Auto
from localspec.speculation.hazards import HazardCounts, Hazards

CPU_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
# CUDA rebuilds its graph whenever the batch width changes, and its matrix-vector kernels end at width 8.
CUDA_DEPTHS = (1, 2, 3, 5, 7)
SWITCHING_IS_DEAR = 1.10  # cost of a changed width from which on proposals keep to few depths


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was learned about acceptance in one kind of sampling."""

    hazards: HazardCounts | None = None
    chances: ChanceWeights | None = None
    trust: TrustCounts | None = None


@dataclass(frozen=True, slots=True)
class TuningState:
    """Everything that a later run with the same files on the same machine can start from."""

    costs: CostTable | None = None
    greedy: Acceptance = field(default_factory=Acceptance)
    sampled: Acceptance = field(default_factory=Acceptance)


class Tuning:
    """Makes the strategy of each reply; greedy and sampled replies share costs but not acceptance."""

    def __init__(
        self,
        guess: CostTable,
        depths: Sequence[int],
        *,
        most: int,
        state: TuningState | None = None,
        earlier: FixedIndex | None = None,
    ) -> None:
        """`guess`: costs until any are known. `most`: draft tokens that one verify batch can hold."""
        state = state or TuningState()
        table = state.costs or guess
        usable = CUDA_DEPTHS if table.switch_ratio > SWITCHING_IS_DEAR else depths
        self._depths = tuple(d for d in usable if d <= most)
        self._most = most
        self._earlier = earlier
        self.costs = Costs(table)
        self._kinds = {False: self._kind(state.greedy), True: self._kind(state.sampled)}

    def strategy(self, model: ModelDrafter | None, *, lookup: bool, sampled: bool) -> Arbiter:
        """The strategy of one reply, with a draft model or without."""
        auto, drafter = self._kinds[sampled]
        auto.begin()
        return Arbiter(
            self.costs,
            model=model,
            auto=auto if model else None,
            lookup=drafter if lookup else None,
            most=self._most,
        )

    def lookup(self, *, sampled: bool) -> LookupDrafter:
        """Lookup with what replies have taught it to trust, in remembered ones as well."""
        return self._kinds[sampled][1]

    def calibrated(self, table: CostTable) -> None:
        """Start from a measured table; acceptance stays as learned."""
        self.costs.restart(table)

    def state(self) -> TuningState:
        greedy, sampled = (self._acceptance(*self._kinds[kind]) for kind in (False, True))
        return TuningState(self.costs.table(), greedy, sampled)

    def _kind(self, known: Acceptance) -> tuple[Auto, LookupDrafter]:
        hazards = Hazards(self._depths[-1], known.hazards)
        auto = Auto(self.costs, hazards, Chances(known.chances), self._depths)
        return auto, LookupDrafter(Trust(known.trust), self._earlier)

    @staticmethod
    def _acceptance(auto: Auto, lookup: LookupDrafter) -> Acceptance:
        return Acceptance(auto.hazards.counts(), auto.chances.weights(), lookup.trust.counts())


def guess_for(device: str) -> CostTable:
    """What batches probably cost on a kind of device (`cuda`, `cpu`, ...) before they are measured."""
    if device == "cuda":
        return CostTable((1, 2, 8, 9, 16, 32), (1, 1.05, 1.2, 2.0, 2.3, 3.0), 0.12, measured=False)
    if device == "cpu":
        return CostTable((1, 2, 3, 5, 8, 16, 32), (1, 1.3, 1.45, 1.9, 2.6, 4.6, 8.6), 0.12, measured=False)
    return CostTable((1, 2, 8, 9, 16, 32), (1, 1.15, 1.8, 2.2, 3.0, 5.0), 0.12, measured=False)


def depths_for(device: str) -> tuple[int, ...]:
    return CUDA_DEPTHS if device == "cuda" else CPU_DEPTHS
