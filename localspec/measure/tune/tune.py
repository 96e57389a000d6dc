"""The whole cost curve of a pair: the target by batch width, a draft step, what a change of width costs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from localspec.algorithm.protocols import Decoder, Drafter
from localspec.chat.loaded_pair import LoadedPair
from localspec.control.calibration import (
    NARROW,
    PASSES,
    WIDE,
    Sample,
    equal_passes,
    fit,
    reading_seconds,
    run_seconds,
    settles,
    windows,
)
from localspec.control.costs import CostTable
from localspec.measure.statistics import Interval, median_interval
from localspec.pair_drafting import PairDrafting
from localspec.passes import NO_TEXT

ROUNDS = 4  # runs of equal passes of each width, where the time allows
LEAST_ROUNDS = 2  # whatever the time says: fewer have no interval
CONTEXT_TOKENS = 256  # in both caches while measuring: an ordinary prompt
DRAFT_SHARE = 0.1  # of the time
PASSES_TOKENS = PASSES * sum(NARROW + WIDE)  # in a round


@dataclass(frozen=True, slots=True)
class WidthCost:
    """A pass of the target over `width` tokens."""

    width: int
    seconds: Interval
    relative: float  # to a pass over one token
    samples: int


@dataclass(frozen=True, slots=True)
class Curve:
    """What passes cost here, with these files."""

    widths: tuple[WidthCost, ...]
    table: CostTable  # the same in the form that the depth control uses
    context_tokens: int
    runs: tuple[int, ...]  # of the drafter's model, by depth from 0; none without one
    run_seconds: float

    @property
    def plain_seconds(self) -> float:
        return self.table.verify(1)

    def break_even(self, depth: int) -> float:
        """Mean accepted length from which drafting `depth` tokens beats plain decoding."""
        runs = self.runs[depth] if self.runs else 0
        return (self.table.verify(depth + 1) + runs * self.run_seconds) / self.plain_seconds


def tune(
    target: Decoder,
    drafter: Drafter | None,
    text: Sequence[int],
    *,
    seconds: float,
    steps_back: bool = True,
    on_round: Callable[[int, int], object] = lambda done, most: None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = perf_counter,
) -> Curve | None:
    """Measure for about `seconds`; `text`: ordinary tokens, as a mixture's experts depend on them.

    `steps_back`: whether the target can forget its newest tokens; a recurrent one cannot, and its context
    grows from pass to pass. Both caches are filled first and empty afterwards. None when it was stopped before
    anything was known.
    """
    widest = max(NARROW + WIDE)
    length = min(CONTEXT_TOKENS, max(target.capacity - widest, 1))
    deadline = clock() + seconds
    drafters = (drafter,) if drafter else ()
    fill(target, text, min(length, target.capacity // 2), drafters)
    runs = run_seconds(drafters, text, deadline=clock() + seconds * DRAFT_SHARE, clock=clock)
    reading = reading_seconds(drafters, text, runs, deadline=clock() + seconds * DRAFT_SHARE, clock=clock)
    samples = list[Sample]()
    for done in range(ROUNDS):
        on_round(done, ROUNDS)
        if stopped() or (done >= LEAST_ROUNDS and clock() > deadline):
            break
        if target.length + PASSES_TOKENS > target.capacity:
            fill(target, text, length)
        samples += one_round(target, text, steps_back, stopped, clock)
    target.rollback(0)
    if drafter:
        drafter.observe(NO_TEXT, 0)
    table = fit(samples, runs, reading, length)
    return curve(samples, table, length, drafter) if table else None


def fill(target: Decoder, text: Sequence[int], length: int, drafters: Sequence[Drafter] = ()) -> None:
    """The target and, so far as they have room, drafters hold so much of the text."""
    tokens = next(windows(text, length))
    target.rollback(0)
    for drafter in drafters:
        drafter.observe(NO_TEXT, 0)
    for passed in target.prefill(tokens):
        for drafter in drafters:
            drafter.observe(passed, len(passed.tokens))
            drafter.read(tokens[: target.length + 1], len(passed.tokens))


def one_round(
    target: Decoder,
    text: Sequence[int],
    steps_back: bool,
    stopped: Callable[[], bool],
    clock: Callable[[], float],
) -> Iterator[Sample]:
    """A run of equal passes of every width."""
    for width in NARROW + WIDE:
        needed = width if steps_back else PASSES * width
        if stopped() or needed > target.capacity - target.length:
            return
        keep = target.length
        for sample in equal_passes(target, width, windows(text, width), clock):
            if steps_back:
                target.rollback(keep)
            yield sample


def store(engine: LoadedPair, curve: Curve) -> None:
    """Start from these costs from now on, in this run and in later ones."""
    if isinstance(engine.drafting, PairDrafting):
        engine.drafting.drafting.calibrated(curve.table)
        engine.drafting.store(())


def curve(samples: list[Sample], table: CostTable, context_tokens: int, drafter: Drafter | None) -> Curve:
    steady = {
        width: [s.seconds for s in samples if s.width == width and settles(s)] for width in table.widths
    }
    plain = table.verify(1)
    widths = tuple(
        WidthCost(width, median_interval(found), table.verify(width) / plain, len(found))
        for width, found in steady.items()
    )
    return Curve(
        widths,
        table,
        context_tokens,
        runs=tuple(map(drafter.model_runs, range(max(NARROW)))) if drafter else (),
        run_seconds=table.run_seconds[drafter.source] if drafter else 0.0,
    )
