"""The whole cost curve of a pair: the target by batch width, a draft step, what a change of width costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from localspec.chat.engine import Engine
from localspec.drafting import PairDrafting
from localspec.measure.statistics import Interval, median_interval
from localspec.speculation.calibration import NARROW, WIDE, Sample, draft_step_seconds, fit
from localspec.speculation.costs import CostTable
from localspec.speculation.protocols import Decoder

ROUNDS = 12  # measurements of each width, where the time allows
LEAST_ROUNDS = 6  # whatever the time says: fewer have no interval
CONTEXT_TOKENS = 256  # in both caches while measuring: an ordinary prompt
DRAFT_SHARE = 0.1  # of the time
PASSES_TOKENS = 2 * sum(NARROW + WIDE)  # in a round


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

    @property
    def plain_seconds(self) -> float:
        return self.table.verify(1)

    def break_even(self, depth: int) -> float:
        """Mean accepted length from which drafting `depth` tokens beats plain decoding."""
        return (self.table.verify(depth + 1) + depth * self.table.draft_step_seconds) / self.plain_seconds


def tune(
    target: Decoder,
    draft: Decoder | None,
    token: int,
    *,
    seconds: float,
    steps_back: bool = True,
    on_round: Callable[[int, int], object] = lambda done, most: None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = perf_counter,
) -> Curve | None:
    """Measure for about `seconds`; `token` is any token, costs do not depend on which.

    `steps_back`: whether the target can forget its newest tokens; a recurrent one cannot, and its context
    grows from pass to pass. Both caches are filled first and empty afterwards. None when it was stopped before
    anything was known.
    """
    widest = max(NARROW + WIDE)
    length = min(CONTEXT_TOKENS, max(target.capacity - widest, 1))
    deadline = clock() + seconds
    for decoder in (target, draft):
        if decoder is not None:
            fill(decoder, token, min(length, decoder.capacity // 2))
    step = draft_step_seconds(draft, token, deadline=clock() + seconds * DRAFT_SHARE, clock=clock)
    samples = list[Sample]()
    for done in range(ROUNDS):
        on_round(done, ROUNDS)
        if stopped() or (done >= LEAST_ROUNDS and clock() > deadline):
            break
        if target.length + PASSES_TOKENS > target.capacity:
            fill(target, token, length)
        after = samples[-1].width if samples else 0
        samples += one_round(target, token, after, steps_back, stopped, clock)
    for decoder in (target, draft):
        if decoder is not None:
            decoder.rollback(0)
    table = fit(samples, step)
    return curve(samples, table, length) if table else None


def fill(decoder: Decoder, token: int, length: int) -> None:
    decoder.rollback(0)
    for _ in decoder.prefill([token] * length):
        pass


def one_round(
    target: Decoder,
    token: int,
    after: int,
    steps_back: bool,
    stopped: Callable[[], bool],
    clock: Callable[[], float],
) -> Iterator[Sample]:
    """Every width twice in a row: the first pass pays for the change of width, the second does not."""
    for width in NARROW + WIDE:
        for _ in range(2):
            if stopped() or width > target.capacity - target.length:
                return
            keep, began = target.length, clock()
            target.decode([token] * width, rows=width)
            taken = clock() - began
            if steps_back:
                target.rollback(keep)
            yield Sample(width, after, taken)
            after = width


def store(engine: Engine, curve: Curve) -> None:
    """Start from these costs from now on, in this run and in later ones."""
    if isinstance(engine.drafting, PairDrafting):
        engine.drafting.drafting.calibrated(curve.table)
        engine.drafting.store(())


def curve(samples: list[Sample], table: CostTable, context_tokens: int) -> Curve:
    steady = {width: [s.seconds for s in samples if s.width == s.after == width] for width in table.widths}
    plain = table.verify(1)
    widths = tuple(
        WidthCost(width, median_interval(found), table.verify(width) / plain, len(found))
        for width, found in steady.items()
    )
    return Curve(widths, table, context_tokens)
