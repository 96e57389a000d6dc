"""The drafting of a loaded pair: each reply's strategy, and the measured costs and acceptance, stored for later."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter

from localspec import options
from localspec.algorithm.protocols import Decoder, Drafter, Rule, Strategy
from localspec.chat.loaded_pair import Slot
from localspec.chat.request import Request
from localspec.control.acceptance import AcceptanceModel, ChanceWeights
from localspec.control.concurrent import ConcurrentReplies
from localspec.control.costs import Costs, CostsByContext, CostTable
from localspec.control.depth import DepthControl
from localspec.drafters.copies import CopyChances, CopyCounts, CopyDrafter
from localspec.drafters.model import FAILURES
from localspec.drafters.selection import DrafterSelection, Fixed, Plain
from localspec.files import recalled, store
from localspec.gguf.matching import SAMPLE
from localspec.llama.context import Context, SlotDecoder
from localspec.llama.head import HeadCache

log = logging.getLogger(__name__)

GPU_SECONDS = 3.0  # time limit of a warm-up on a GPU, and of the later measurement of costs
# By device ("": other GPUs): batch widths, and the estimated times of passes; a pass over one token takes time 1.
ESTIMATED_COSTS = {
    "cuda": ((1, 2, 8, 9, 16, 32), (1, 1.05, 1.2, 2.0, 2.3, 3.0)),
    "cpu": ((1, 2, 3, 5, 8, 16, 32), (1, 1.3, 1.45, 1.9, 2.6, 4.6, 8.6)),
    "": ((1, 2, 8, 9, 16, 32), (1, 1.15, 1.8, 2.2, 3.0, 5.0)),
    "experts": ((1, 2, 3, 5, 8, 16, 32), (1, 1.55, 2.1, 3.1, 4.7, 8.5, 15)),  # only experts on the CPU
}
DEEPEST = 12  # maximum draft tokens in a model's proposal
# Batch widths to time. They include 8 and 9, because llama.cpp uses other kernels from 9 tokens on.
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 64)
# Each width is timed this many times. The first two passes are slower: later, a GPU replays a recorded graph.
PASSES = 5


class _GivenUp(Exception):
    """An exception that ends a measurement because a request waits."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The learned acceptance rates: one object for greedy replies, one for sampled ones."""

    chances: ChanceWeights | None = None
    copies: CopyCounts | None = None


@dataclass(frozen=True, slots=True)
class LearnedState:
    """Learned costs and acceptance, stored for later runs with the same files on the same machine."""

    tables: tuple[CostTable, ...] = ()  # a table for each measured bucket of `CostsByContext`
    greedy: Acceptance = field(default_factory=Acceptance)
    sampled: Acceptance = field(default_factory=Acceptance)


def estimated_costs(device: str, run_shares: Mapping[str, float]) -> CostTable:
    """Return estimated costs of passes on a device of ESTIMATED_COSTS.

    `run_shares` maps each `Drafter.source` to the time of one run of the drafter's model; a baseline step takes time 1.
    """
    widths, seconds = ESTIMATED_COSTS.get(device, ESTIMATED_COSTS[""])
    return CostTable(widths, seconds, dict(run_shares), measured=False)


class Drafting:
    """The drafting of one slot, by models, heads and lookup in the text, or by none of these.

    Greedy and sampled replies share drafters and costs, but not acceptance.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        guess: CostTable,
        deepest: int = DEEPEST,
        *,
        most: int,
        lookup: bool = True,
        learned: LearnedState | None = None,
        target: Context | None = None,
        decoding: Sequence[SlotDecoder | HeadCache] = (),
        stored: Path | None = None,
        first: "Drafting | None" = None,
    ) -> None:
        """`drafters`: this slot's drafters that run a model or head; `guess`: estimated costs.

        `deepest`: maximum draft tokens in a model's proposal; `most`: maximum draft tokens in any verify batch.
        `target`: the context to measure costs on; `decoding`: the slot's decoders of target and draft model.
        `learned`: the learned state; None: read it from the file `stored`. `first`: the drafting of the first
        slot; all slots share its costs.
        """
        self._stored = stored
        learned = learned or (first.learned if first else None)
        known = learned or (stored and recalled(stored, LearnedState)) or LearnedState()
        self._target, self._decoding = target, tuple(decoding)
        self._concurrent: ConcurrentReplies = (
            first._concurrent
            if first
            else ConcurrentReplies(
                CostsByContext(known.tables or (guess,), self._threads),
                lock=decoding[0].calling if decoding else nullcontext(),
            )
        )
        self._drafters, self._lookup, self._most = tuple(drafters), lookup, most
        self._deepest = min(deepest, most)
        self._candidates = {False: self._made(known.greedy), True: self._made(known.sampled)}

    def _threads(self) -> int:
        return self._decoding[0].threads.now if self._decoding else 0

    def strategy(
        self,
        rule: Rule,
        request: Request,
        predicted: Sequence[int] = (),
        spelled: Sequence[Sequence[int]] = (),
    ) -> Strategy:
        """Return the strategy of one reply to a request; `predicted`: tokens of the caller's prediction.

        `spelled`: more texts to copy from, with other tokens than they have in the prompt.
        """
        depth, candidates = request.depth, self._candidates[not request.sampling.greedy]
        if depth == 0 or not self._most:
            for reader in (readers := [each for each in self._drafters if each.hidden_rows_needed]):
                reader.begin()
            return Plain(readers)
        if depth is None:
            strategy, copies = DrafterSelection(self._concurrent, candidates, rule), _copies_of(candidates)
            if copies:
                copies.add(spelled, predicted)
            return strategy
        # With a seed, lookup at a fixed depth ignores earlier replies, because a seed must repeat its reply.
        fresh = request.seed is not None or not candidates
        drafter = next(iter(self._drafters), CopyDrafter() if fresh else candidates[0].drafter)
        drafter.begin_whole()
        return Fixed(drafter, min(depth, self._most), rule, predicted, self._most)

    @property
    def costs(self) -> Costs:
        """The costs of passes at the present length of the context."""
        return self._concurrent.buckets.costs

    def store(self) -> None:
        """Store costs and acceptance for the next run; log a warning if they cannot be written."""
        try:
            if self._stored is not None:
                store(self._stored, self.learned)
        except OSError as error:
            _warn_not_stored(options.data_dir(), error.strerror or str(error))

    def calibrate(self, text: Sequence[int], budget_seconds: float, stop: Callable[[], bool]) -> None:
        """If no costs were measured, measure them with passes over `text`, and roll the caches back."""
        target, failed = self._target, any(drafter.failure for drafter in self._drafters)
        if target is None or target.rollback_limit is not None or self.costs.measured or failed:
            return  # a target with a rollback limit cannot forget the widest batches
        widths = [*(width for width in WIDTHS if width < target.rows_max), target.rows_max]
        length = target.length

        def clock() -> float:
            """Return the time; raise _GivenUp if a request waits."""
            if stop():
                raise _GivenUp
            return perf_counter()

        try:
            table = calibrate(
                target, self._drafters, text, budget_seconds=budget_seconds, clock=clock, widths=widths
            )
        except (_GivenUp, *FAILURES):  # store no costs: an untimed drafter would seem to cost nothing
            target.rollback(length)
            return
        if table is not None:
            self._concurrent.buckets.calibrated(table)
            self.store()

    @property
    def learned(self) -> LearnedState:
        greedy, sampled = (_acceptance_of(self._candidates[kind]) for kind in (False, True))
        with self._concurrent.lock:
            return LearnedState(self._concurrent.buckets.tables(), greedy, sampled)

    def _made(self, known: Acceptance) -> tuple[DepthControl, ...]:
        """Return the depth controls of all drafters, copies first."""
        free = [CopyDrafter(CopyChances(known.copies))] if self._lookup and self._most else []
        models = (
            self._candidate(each, AcceptanceModel(known.chances), self._deepest) for each in self._drafters
        )
        return (*(self._candidate(each, AcceptanceModel(), self._most) for each in free), *models)

    def _candidate(self, drafter: Drafter, chances: AcceptanceModel, most: int) -> DepthControl:
        return DepthControl(self._concurrent.buckets.costs, drafter, chances, most)


def _acceptance_of(candidates: Sequence[DepthControl]) -> Acceptance:
    chances = next((c.chances.weights() for c in candidates if not c.is_free), None)
    copies = _copies_of(candidates)
    return Acceptance(chances, copies.chances.counts() if copies else None)


def _copies_of(candidates: Sequence[DepthControl]) -> CopyDrafter | None:
    return next((c.drafter for c in candidates if isinstance(c.drafter, CopyDrafter)), None)


@functools.cache  # cached, so that each process warns once
def _warn_not_stored(folder: Path, why: str) -> None:
    log.warning("costs and acceptance of pairs cannot be stored in %s: %s", folder, why)


def warm_up(target: Context, slots: Sequence[Slot]) -> None:
    """Decode batches of the common widths on the target, then run the drafters, and empty all caches.

    On a GPU, also measure the costs that are unknown. Raises the errors of the target's `decode`.
    """
    # SAMPLE has several kinds of text, because a mixture of experts decodes some tokens faster than others.
    text = list(target.model.vocab.tokenize(SAMPLE, parse_special=False))
    began = perf_counter()
    # On a GPU the first pass of each width may compile kernels. A CPU compiles none, so one width is enough there.
    for width in WIDTHS if target.model.gpu else WIDTHS[:1]:
        tokens = text[: min(width, target.capacity)]
        target.decode(tokens, rows=min(len(tokens), target.rows_max))
        target.rollback(0)
        if perf_counter() - began > GPU_SECONDS:
            break
    target.prefer_rows(text[:5])
    for drafter in (drafter for slot in slots for drafter in slot.drafters):
        try:
            drafter.warm_up([text[:1], text[:2]])
        except FAILURES:
            return  # the first reply fails in the same way, and reports the error
    if target.model.gpu:
        slots[0].drafting.calibrate(text, GPU_SECONDS, stop=lambda: False)


def calibrate(
    target: Decoder,
    drafters: Sequence[Drafter],
    text: Sequence[int],
    *,
    budget_seconds: float,
    clock: Callable[[], float],
    widths: Sequence[int] = WIDTHS,
) -> CostTable | None:
    """Time the target and the drafters' models at the present context length, and restore their caches.

    `text`: one or more tokens to decode, best of ordinary text, because tokens decide which experts a model uses.
    Return None if the budget is too small for the two narrowest widths. Raises the errors of a drafter's model.
    """
    deadline = clock() + budget_seconds
    keep, room = target.length, target.capacity - target.length
    half = clock() + budget_seconds / 2
    runs: dict[str, float] = {each.source: _run_seconds(each, text, half, clock) for each in drafters}
    measured, slowest = dict[int, list[float]](), 0.0
    # A fast pass runs PASSES times, so that a GPU replays its graph. A slow one runs twice, and its second run counts.
    slow_seconds = budget_seconds / PASSES / len(widths)
    for width in [width for width in widths if width <= room] * 2:
        expected = max(measured.get(width, ()), default=2 * slowest)
        if clock() + (2 if expected > slow_seconds else PASSES) * expected > deadline:
            continue
        seconds = list[float]()
        for batch in islice(_windows(text, width), PASSES):
            began = clock()
            target.decode(batch, rows=width)
            seconds.append(clock() - began)
            target.rollback(keep)
            if seconds[-1] > slow_seconds and len(seconds) > 1:
                break
        slowest = max(slowest, *seconds)
        measured[width] = measured.get(width, []) + seconds[min(2, len(seconds) - 1) :]
    if len(measured) < 2 or 1 not in measured:
        return None
    found = {width: median(measured[width]) for width in sorted(measured)}
    return CostTable(tuple(found), tuple(found.values()), runs, context_tokens=keep)


def _windows(text: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield `width` consecutive tokens of `text` at a time, without end: after its last token `text` begins again."""
    start = 0
    while True:
        yield [text[i % len(text)] for i in range(start, start + width)]
        start += width


def _run_seconds(drafter: Drafter, text: Sequence[int], deadline: float, clock: Callable[[], float]) -> float:
    runs = list[float]()
    for tokens in islice(_windows(text, PASSES), PASSES):
        began = clock()
        drafter.warm_up([[token] for token in tokens])
        runs.append((clock() - began) / PASSES)
        if clock() + 2 * (clock() - began) > deadline:
            break
    return median(runs[1:] or runs)
