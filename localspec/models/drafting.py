"""The drafting of a loaded pair: makes the strategy of each reply, and stores costs and acceptance."""

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from localspec import options
from localspec.algorithm.protocols import Drafter, Rule, Strategy, Vocabulary
from localspec.chat.options import Request, seed_fixes_depth
from localspec.control.acceptance import AcceptanceModel, ChanceWeights
from localspec.control.calibration import NARROW, WIDE, calibrate
from localspec.control.company import Company
from localspec.control.cost_table import CostTable
from localspec.control.costs import Costs, CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.arbiter import Arbiter, Fixed, Plain, best_depth
from localspec.drafters.lookup import LookupAcceptance, LookupCounts, LookupDrafter
from localspec.drafters.model import FAILURES
from localspec.drafters.prediction import PredictionDrafter
from localspec.files import file_of, recalled, store
from localspec.gguf.matching import SAMPLE
from localspec.health.installed import installed_build
from localspec.llama.context import Context
from localspec.llama.devices import devices
from localspec.llama.threads import Threads
from localspec.models.plan import Plan
from localspec.models.registry import Pair

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)  # that verify batches mostly have
USUAL_WIDTH = 5
DRAFT_WIDTHS = (1, 2)
SHARED = (9, 10, 12)  # widths that passes of several replies have as well: kernels have limits there
CPU_SECONDS = 0.1  # nothing is compiled there: a first pass takes 1.0 to 1.4 times as long as a later one
GPU_SECONDS = 3.0
CALIBRATION_SECONDS = 2.0  # once for a pair on a GPU: the costs are stored


def ordinary_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens of a mixed text to measure costs with: a mixture of experts decodes some tokens faster than others."""
    return list(vocabulary.tokenize(SAMPLE, parse_special=False))


class _GivenUp(Exception):
    """A measurement whose end somebody waits for."""


VERSION = "5"  # of lessons: raised when their numbers change their meaning
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
    """The drafting of a target: with its draft model, with lookup in the text, or none.

    Greedy and sampled replies share drafters and costs, but not acceptance.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        guess: CostTable,
        depths: Sequence[int] = DEPTHS,
        *,
        most: int,
        lookup: bool = True,
        lessons: TunedState | None = None,
        pads: bool = False,
        target: Context | None = None,
        threads: Sequence[Threads] = (),
        starting_depth: int = 4,
        stored: Path | None = None,
    ) -> None:
        """`drafters` run models; `guess`: costs until any are known; `depths`: the depths that these may propose.

        `most`: draft tokens that one verify batch can hold; `pads`: whether it may be filled up to one width.
        `target`: to calibrate on; `threads`: its own, then those of drafts; `starting_depth`: for seeded replies.
        `stored`: the file for lessons; without one nothing is stored.
        """
        self._stored = stored
        known = (recalled(stored, TunedState) if stored else lessons) or TunedState()
        self._target, self._threads, self._starting_depth = target, tuple(threads), starting_depth
        self.seeds_keep_threads = True  # those that a measurement draws for itself do not
        self._places = CostsByContext(known.costs or (guess,), lambda: threads[0].now if threads else 0)
        self._company = Company(self._places)
        self._pads = pads
        self._drafters = tuple(drafters)
        self._depths = tuple(depth for depth in depths if depth <= most)
        self._free_depths = tuple(depth for depth in LOOKUP_DEPTHS if depth <= most)
        self._most = most
        self.seeded_depth = known.seeded_depth
        self._lookup = lookup
        self._contenders = {False: self._made(known.greedy), True: self._made(known.sampled)}
        self._first = self  # of several lanes

    def beside(
        self, drafters: Sequence[Drafter], target: Context | None, threads: Sequence[Threads]
    ) -> "Drafting":
        """The drafting of another lane, with the same costs and the acceptance that is known now."""
        other, known = copy.copy(self), self.lessons
        self._company.lanes += 1
        other._drafters, other._target, other._threads = tuple(drafters), target, tuple(threads)
        other._contenders = {False: other._made(known.greedy), True: other._made(known.sampled)}
        return other

    def strategy(self, rule: Rule, request: Request, predicted: Sequence[int] = ()) -> Strategy:
        """The strategy of one reply: automatic, at a fixed depth, or none; `predicted`: tokens expected of it."""
        for threads in self._threads:
            threads.fixed = self.seeds_keep_threads and request.seed is not None and not rule.seed_decides
        depth = request.depth if request.speculate else 0
        if seed_fixes_depth(request, rule):
            depth = self._starting_depth if self._first.seeded_depth is None else self._first.seeded_depth
        sampled, seeded = not request.sampling.greedy, request.seed is not None
        return self.strategy_at(
            depth, rule, sampled=sampled, seeded=seeded, predicted=predicted, background=request.background
        )

    def strategy_at(
        self,
        depth: int | None,
        rule: Rule,
        *,
        sampled: bool,
        seeded: bool = False,
        predicted: Sequence[int] = (),
        background: bool = False,
    ) -> Strategy:
        """The strategy of one reply: at a fixed depth, without drafting (0), or automatic (None).

        `seeded`: lookup at a fixed depth knows only the text, so that it proposes the same again.
        """
        if depth == 0 or not self._most:
            readers = [drafter for drafter in self._drafters if drafter.hidden_rows_needed]
            for reader in readers:
                reader.begin()
            return Plain(readers, self._company)
        contenders = self._contenders[sampled]
        prediction = PredictionDrafter(predicted) if predicted else None
        if depth is None:
            if prediction:
                contenders = (self._contender(prediction, AcceptanceModel(), self._free_depths), *contenders)
            return Arbiter(self._company, contenders, rule, background=background)
        fresh = seeded or not contenders
        drafter = next(iter(self._drafters), LookupDrafter() if fresh else contenders[0].drafter)
        drafter.begin()
        return Fixed(drafter, min(depth, self._most), rule, prediction, self._most, self._company)

    def keep_threads(self) -> None:
        """Until the next reply every pass has the usual number of threads."""
        for threads in self._threads:
            threads.fixed = True

    @property
    def crowded(self) -> bool:
        """Whether other programs keep the processor busy that a model is on."""
        return any(threads.crowded for threads in self._threads)

    @property
    def costs(self) -> Costs:
        """What passes cost at the present length of the context."""
        return self._places.costs

    def calibrated(self, table: CostTable) -> None:
        """Start from a measured table; acceptance stays as learned."""
        self._places.calibrated(table)
        self.store()

    def store(self) -> None:
        """Store costs and acceptance for the next run, if the folder can be written."""
        try:
            if self._stored is not None:
                store(self._stored, self.lessons)
        except OSError as error:
            tell_not_stored(options.data_dir(), error.strerror or str(error))

    def calibrate(self, text: Sequence[int], budget_seconds: float, stop: Callable[[], bool]) -> None:
        """Measure the cost of batches of these tokens, unless it is known; the caches end as they began."""
        target, failed = self._target, any(drafter.failure for drafter in self._drafters)
        if target is None or target.rollback_limit is not None or self.costs.measured or failed:
            return  # a recurrent state cannot step back over the widest batches
        shared = SHARED if len(target.lanes) > 1 else ()
        widths = [width for width in (*NARROW, *shared, *WIDE) if width <= target.rows_max]
        length = target.length

        def clock() -> float:
            """The clock, read between batches, which also checks for waiting requests."""
            if stop():
                raise _GivenUp
            return perf_counter()

        try:
            table = calibrate(
                target, self._drafters, text, budget_seconds=budget_seconds, clock=clock, widths=widths
            )
        except (_GivenUp, *FAILURES):  # a drafter without room cannot be timed, and is no free one
            target.rollback(length)
            return
        if table is not None:
            self.calibrated(table)

    @property
    def lessons(self) -> TunedState:
        """The costs and acceptance so far."""
        greedy, sampled = (acceptance_of(self._contenders[kind]) for kind in (False, True))
        first = self._first
        if first.seeded_depth is None:
            first.seeded_depth = self._best_depth()
        return TunedState(self._places.tables(), greedy, sampled, first.seeded_depth)

    def _best_depth(self) -> int | None:
        """The best depth by costs and acceptance. It stays, so it is None until this process has seen both."""
        drafter = next((c for c in self._contenders[True] if not c.is_free), None)
        chance = drafter.chances.usual if drafter else None
        if drafter is None or chance is None or not (self.costs.measured and self.costs.confirmed):
            return None
        return best_depth(self.costs, chance, drafter.seconds, self._depths)

    def _made(self, known: Acceptance) -> tuple[DepthControl, ...]:
        """Lookup, which is free, and then the others."""
        free = [LookupDrafter(LookupAcceptance(known.trust))] if self._lookup and self._free_depths else []
        return (
            *(self._contender(drafter, AcceptanceModel(), self._free_depths) for drafter in free),
            *(
                self._contender(drafter, AcceptanceModel(known.chances), self._depths)
                for drafter in self._drafters
            ),
        )

    def _contender(self, drafter: Drafter, chances: AcceptanceModel, depths: Sequence[int]) -> DepthControl:
        return DepthControl(self._places, drafter, chances, depths, pads=self._pads)


def acceptance_of(contenders: Sequence[DepthControl]) -> Acceptance:
    """The contenders' learned state, as it is stored."""
    chances = next((c.chances.weights() for c in contenders if not c.is_free), None)
    trust = next((c.drafter.trust.counts() for c in contenders if isinstance(c.drafter, LookupDrafter)), None)
    return Acceptance(chances, trust)


def lessons_file(pair: Pair, plan: Plan, threads: int) -> Path:
    """The file of lessons, one for these files, how they are loaded, the devices and the llama.cpp."""
    inside = plan.draft.kind.removeprefix("draft-") if plan.draft else ""
    return file_of(
        options.data_dir() / "lessons",
        VERSION,
        identity(pair.target.here),
        identity(pair.draft.here) if plan.draft and pair.draft else inside,
        _adapters(pair),
        str(threads),
        ", ".join(device.description for device in devices()),
        f"{plan.target.place}, {plan.draft and plan.draft.place}",
        f"{plan.target.kv_type}, {plan.draft and plan.draft.kv_type}",
        installed_build(),
    )


@functools.cache  # a folder that cannot be written is worth one sentence in a process
def tell_not_stored(folder: Path, why: str) -> None:
    log.warning("costs and acceptance of pairs cannot be stored in %s: %s", folder, why)


def identity(path: Path) -> str:
    facts = path.stat()
    return f"{path.resolve()}:{facts.st_size}:{facts.st_mtime_ns}"


def _adapters(pair: Pair) -> str:
    return ", ".join(f"{identity(path)} x {scale}" for path, scale in pair.lora)


def warm_up(target: Context, drafters: Sequence[Drafter], drafting: Drafting) -> None:
    """Decode batches of the common widths on the target and let drafters run their models; all end empty.

    On a GPU it then measures unknown costs. Raises as the target's `decode` does.
    """
    text = ordinary_tokens(target.model.vocab)
    warm(target, WIDTHS, text)
    target.prefer_rows(text[:USUAL_WIDTH])
    for drafter in drafters:
        try:
            drafter.warm_up([text[:width] for width in DRAFT_WIDTHS])
        except FAILURES:
            return  # it meets the failure again and tells the user
    if target.model.gpu:
        drafting.calibrate(text, CALIBRATION_SECONDS, stop=lambda: False)


def warm(context: Context, widths: Sequence[int], text: Sequence[int]) -> None:
    began = perf_counter()
    for width in widths:
        tokens = text[: min(width, context.capacity)]
        context.decode(tokens, rows=min(len(tokens), context.rows_max))
        context.rollback(0)
        if perf_counter() - began > (GPU_SECONDS if context.model.gpu else CPU_SECONDS):
            return


log = logging.getLogger(__name__)
