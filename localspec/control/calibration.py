"""Measures the cost of passes while nobody waits: at load, after a reply, or on request."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from localspec.algorithm.protocols import Decoder, Drafter
from localspec.control.cost_table import CostTable
from localspec.control.costs import SETTLING

NARROW = (1, 2, 3, 4, 5, 6, 7, 8)  # widths of model drafts
WIDE = (16, 32)  # widths of lookup drafts
ROUNDS = 2  # runs of every width, where the budget allows
PASSES = 5  # equal ones in a run: direct, capture, and three that are replayed
# Launching is no part of a pass that takes so long: the first one warms up.
SLOW_SECONDS, SLOW_PASSES = 0.1, 2
DRAFT_ROUNDS, DRAFT_STEPS = 6, 4  # draft steps in a row, as in a cycle
READ = 32  # tokens that a drafter reads at once, and always has room for


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed pass: its width, how many of that width ran in a row with it, and its seconds."""

    width: int
    run: int
    seconds: float


def calibrate(
    target: Decoder,
    drafters: Sequence[Drafter],
    text: Sequence[int],
    *,
    budget_seconds: float,
    clock: Callable[[], float],
    widths: Sequence[int] = NARROW + WIDE,
) -> CostTable | None:
    """Time the target and the drafters that run models at their present context length; all end as they began.

    `text`: ordinary tokens to decode, at least one: which experts a mixture asks for depends on them. None when
    the budget did not allow even the two narrowest widths. Raises what running a drafter's model raises.
    """
    deadline = clock() + budget_seconds
    keep, room = target.length, target.capacity - target.length
    runs, reading = dict[str, float](), dict[str, float]()
    for drafter in drafters:
        run, token = drafter_seconds(drafter, text, budget_seconds=budget_seconds / 2, clock=clock)
        runs[drafter.source] = run
        reading |= {} if token is None else {drafter.source: token}
    samples, slowest = list[Sample](), 0.0
    for width in [width for width in widths if width <= room] * ROUNDS:
        expected = max((s.seconds for s in samples if s.width == width), default=1.5 * slowest)
        if clock() + (PASSES if expected <= SLOW_SECONDS else SLOW_PASSES) * expected > deadline:
            continue
        for sample in equal_passes(target, width, windows(text, width), clock):
            target.rollback(keep)
            samples.append(sample)
            slowest = max(slowest, sample.seconds)
    return fit(samples, runs, reading, keep)


def windows(text: Sequence[int], width: int) -> Iterator[list[int]]:
    """Pieces of neighbouring tokens of the text, one after the other, without end."""
    start = 0
    while True:
        yield [text[i % len(text)] for i in range(start, start + width)]
        start += width


def equal_passes(
    target: Decoder, width: int, tokens: Iterator[list[int]], clock: Callable[[], float]
) -> Iterator[Sample]:
    """Timed passes of one width; the caller rolls back between them."""
    passes = PASSES
    for run, batch in enumerate(islice(tokens, PASSES), start=1):
        if run > passes:
            return
        began = clock()
        target.decode(batch, rows=width)
        taken = clock() - began
        passes = SLOW_PASSES if taken > SLOW_SECONDS else passes
        yield Sample(width, run, taken)


def drafter_seconds(
    drafter: Drafter, text: Sequence[int], *, budget_seconds: float, clock: Callable[[], float]
) -> tuple[float, float | None]:
    """The median of several runs of its model, and if it reads tokens and time allows, the seconds of one of many."""
    runs, reading, deadline = list[float](), None, clock() + budget_seconds / 2
    for tokens in islice(windows(text, DRAFT_STEPS), DRAFT_ROUNDS):
        began = clock()
        drafter.warm_up([[token] for token in tokens])
        runs.append((clock() - began) / DRAFT_STEPS)
        if clock() + 2 * runs[-1] * DRAFT_STEPS > deadline:
            break
    run, deadline = median(runs[1:] or runs), clock() + budget_seconds / 2
    for tokens in islice(windows(text, READ), 2):  # the first pass of a width takes longer
        began = clock()
        if drafter.hidden_rows_needed or began + READ / 2 * run > deadline:
            break
        drafter.warm_up([tokens])
        reading = (clock() - began) / READ
    return run, reading


def fit(
    samples: Sequence[Sample], runs: dict[str, float], reading: dict[str, float], context_tokens: int
) -> CostTable | None:
    """Medians by width of settled passes, and the extra seconds of the passes before them."""
    settled: dict[int, list[float]] = {}
    for sample in samples:
        # Equal passes after it cost the same.
        if sample.run > (SLOW_PASSES - 1 if sample.seconds > SLOW_SECONDS else SETTLING):
            settled.setdefault(sample.width, []).append(sample.seconds)
    if len(settled) < 2 or min(settled) != 1:
        return None
    seconds = {width: median(settled[width]) for width in sorted(settled)}

    def extra(run: int) -> float:
        of_run = [s for s in samples if s.run == run and s.width in NARROW and s.width in seconds]
        found = [s.seconds - seconds[s.width] for s in of_run]
        return max(median(found), 0.0) if found else 0.0

    return CostTable(
        widths=tuple(seconds),
        verify_seconds=tuple(seconds.values()),
        run_seconds=runs,
        reading_seconds=reading,
        direct_extra_seconds=extra(1),
        capture_extra_seconds=extra(2),
        context_tokens=context_tokens,
    )
