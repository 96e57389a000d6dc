"""The drafters of a loaded target: makes the strategy of each reply and keeps what replies teach."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from localspec.algorithm.protocols import Drafter, Rule, Strategy
from localspec.control.acceptance import AcceptanceModel, ChanceWeights
from localspec.control.costs import Costs, CostsByContext, CostTable
from localspec.control.depth import DepthControl, PlainProbes
from localspec.drafters.arbiter import Arbiter, Contender, Fixed, Plain, best_depth
from localspec.drafters.lookup import LookupAcceptance, LookupCounts, LookupDrafter
from localspec.drafters.prediction import PredictionDrafter

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
LOOKUP_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 11, 15, 23, 31)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Learned acceptance in one kind of sampling."""

    chances: ChanceWeights | None = None
    trust: LookupCounts | None = None


@dataclass(frozen=True, slots=True)
class TunedState:
    """The start of a later run with the same files on the same machine."""

    costs: tuple[CostTable, ...] = ()  # one for each length of the context
    greedy: Acceptance = field(default_factory=Acceptance)
    sampled: Acceptance = field(default_factory=Acceptance)
    seeded_depth: int | None = None  # of replies with a seed; once known it stays, so that a seed repeats


def guess_for(device: str, run_shares: Mapping[str, float]) -> CostTable:
    """Probable costs of batches on a kind of device (`cuda`, `cpu`, ...) before they are measured.

    `run_shares`: cost of a run of a drafter's model as a share of a plain step, by `Drafter.source`.
    """
    runs = dict(run_shares)
    if device == "cuda":
        widths, seconds = (1, 2, 8, 9, 16, 32), (1, 1.05, 1.2, 2.0, 2.3, 3.0)
        return CostTable(
            widths, seconds, runs, measured=False, direct_extra_seconds=0.1, capture_extra_seconds=0.5
        )
    if device == "cpu":
        return CostTable((1, 2, 3, 5, 8, 16, 32), (1, 1.3, 1.45, 1.9, 2.6, 4.6, 8.6), runs, measured=False)
    return CostTable((1, 2, 8, 9, 16, 32), (1, 1.15, 1.8, 2.2, 3.0, 5.0), runs, measured=False)


class Drafting:
    """Greedy and sampled replies share drafters and costs, but not acceptance."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        guess: CostTable,
        depths: Sequence[int],
        *,
        most: int,
        lookup: bool = True,
        lessons: TunedState | None = None,
        pads: bool = False,
        threads: Callable[[], int] = lambda: 0,
    ) -> None:
        """`drafters` run models; `guess`: costs until any are known; `depths`: the depths that these may propose.

        `most`: draft tokens that one verify batch can hold.
        `pads`: whether verify batches may be filled up to one width; `threads`: how many decode now.
        """
        known = lessons or TunedState()
        self._places = CostsByContext(known.costs or (guess,), threads)
        self._anchors = PlainProbes()
        self._pads = pads
        self._drafters = tuple(drafters)
        self._depths = tuple(depth for depth in depths if depth <= most)
        self._free_depths = tuple(depth for depth in LOOKUP_DEPTHS if depth <= most)
        self._most = most
        self.seeded_depth = known.seeded_depth
        self._lookup = lookup
        self._contenders = {False: self._made(known.greedy), True: self._made(known.sampled)}

    def strategy(
        self,
        rule: Rule,
        *,
        depth: int | None,
        sampled: bool,
        seeded: bool = False,
        predicted: Sequence[int] = (),
    ) -> Strategy:
        """The strategy of one reply: at a fixed depth, without drafting (0), or automatic (None).

        `seeded`: lookup at a fixed depth knows only the text, so that it proposes the same again.
        `predicted`: tokens that the caller expects of the reply.
        """
        if depth == 0 or not self._most:
            readers = [drafter for drafter in self._drafters if drafter.hidden_rows_needed]
            for reader in readers:
                reader.begin()
            return Plain(readers)
        contenders = self._contenders[sampled]
        prediction = PredictionDrafter(predicted) if predicted else None
        if depth is None:
            if prediction:
                contenders = (self._contender(prediction, AcceptanceModel(), self._free_depths), *contenders)
            return Arbiter(self._places, self._anchors, contenders, rule)
        fresh = seeded or not contenders
        drafter = next(iter(self._drafters), LookupDrafter() if fresh else contenders[0].drafter)
        drafter.begin()
        return Fixed(drafter, min(depth, self._most), rule, prediction, self._most)

    @property
    def costs(self) -> Costs:
        """What passes cost at the present length of the context."""
        return self._places.costs

    @property
    def failed(self) -> bool:
        """Whether a drafter failed in the latest reply."""
        return any(drafter.failure for drafter in self._drafters)

    def calibrated(self, table: CostTable) -> None:
        """Start from a measured table; acceptance stays as learned."""
        self._places.calibrated(table)

    @property
    def lessons(self) -> TunedState:
        """What was learned so far."""
        greedy, sampled = (acceptance_of(self._contenders[kind]) for kind in (False, True))
        if self.seeded_depth is None:
            self.seeded_depth = self._best_depth()
        return TunedState(self._places.tables(), greedy, sampled, self.seeded_depth)

    def _best_depth(self) -> int | None:
        """The best depth by costs and acceptance here; None while either is unknown."""
        drafter = next((c for c in self._contenders[True] if not c.is_free), None)
        chance = drafter.control.chances.usual if drafter else None
        if drafter is None or chance is None or not self.costs.measured:
            return None
        return best_depth(self.costs, chance, drafter.control.seconds, self._depths)

    def _made(self, known: Acceptance) -> tuple[Contender, ...]:
        """Lookup, which is free, and then the others."""
        free = [LookupDrafter(LookupAcceptance(known.trust))] if self._lookup and self._free_depths else []
        return (
            *(self._contender(drafter, AcceptanceModel(), self._free_depths) for drafter in free),
            *(
                self._contender(drafter, AcceptanceModel(known.chances), self._depths)
                for drafter in self._drafters
            ),
        )

    def _contender(self, drafter: Drafter, chances: AcceptanceModel, depths: Sequence[int]) -> Contender:
        return Contender(drafter, DepthControl(self._places, drafter, chances, depths, pads=self._pads))


def acceptance_of(contenders: Sequence[Contender]) -> Acceptance:
    """The contenders' learned state, as it is stored."""
    chances = next((c.control.chances.weights() for c in contenders if not c.is_free), None)
    trust = next((c.drafter.trust.counts() for c in contenders if isinstance(c.drafter, LookupDrafter)), None)
    return Acceptance(chances, trust)
