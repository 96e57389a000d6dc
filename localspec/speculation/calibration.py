"""Measuring what batches cost, in seconds that nobody waits for: after a reply, or when asked to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from localspec.speculation.costs import CostTable
from localspec.speculation.protocols import Decoder

NARROW = (1, 2, 3, 4, 5, 6, 7, 8)  # widths of model drafts
WIDE = (16, 32)  # widths of lookup drafts
ROUNDS = 5  # measurements of each width, where the budget allows
DRAFT_STEPS = 4  # draft steps in a row, as in a cycle


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed pass: its width, the width of the pass before it, and its seconds."""

    width: int
    after: int
    seconds: float


def calibrate(
    target: Decoder,
    draft: Decoder | None,
    token: int,
    *,
    budget_seconds: float,
    clock: Callable[[], float],
    widths: Sequence[int] = NARROW + WIDE,
) -> CostTable | None:
    """Time both models at their present context length; both end as they began.

    `token` is any token of the vocabulary: costs do not depend on which. None when the budget did not allow
    even the two narrowest widths, or the draft's context is full.
    """
    if draft is not None and draft.capacity - draft.length < DRAFT_STEPS:
        return None  # a draft that cannot be timed is not a free one
    deadline = clock() + budget_seconds
    room = target.capacity - target.length
    step = draft_step_seconds(draft, token, deadline=clock() + budget_seconds / 4, clock=clock)
    samples = target_samples(target, token, [n for n in widths if n <= room], deadline=deadline, clock=clock)
    return fit(samples, step)


def target_samples(
    target: Decoder, token: int, widths: Sequence[int], *, deadline: float, clock: Callable[[], float]
) -> list[Sample]:
    """Passes of every width in turn, so that a busy second hits all; those that do not fit are left out."""
    keep, samples, after = target.length, list[Sample](), 0
    latest: dict[int, float] = {}
    for width in list(widths) * ROUNDS:
        expected = latest.get(width, 1.5 * max(latest.values(), default=0.0))
        if clock() + 2 * expected > deadline:
            continue
        # Twice in a row: the first pass pays for the change of width and for warming up, the second does not.
        for _ in range(2):
            began = clock()
            target.decode([token] * width, rows=width)
            latest[width] = clock() - began
            target.rollback(keep)
            samples.append(Sample(width, after, latest[width]))
            after = width
    return samples


def draft_step_seconds(
    draft: Decoder | None, token: int, *, deadline: float, clock: Callable[[], float]
) -> float:
    """Median seconds of one draft token among several in a row; 0 without a draft."""
    if draft is None:
        return 0.0
    keep, found = draft.length, []
    for _ in range(ROUNDS + 1):
        began = clock()
        for _ in range(DRAFT_STEPS):
            draft.decode([token], rows=1)
        found.append((clock() - began) / DRAFT_STEPS)
        draft.rewind(keep)  # a recurrent one falls back further
        if clock() + 2 * found[-1] * DRAFT_STEPS > deadline:
            break
    return median(found[1:] or found)


def fit(samples: Sequence[Sample], draft_step: float) -> CostTable | None:
    """Medians by width of passes that follow one of the same width; the others give the cost of switching."""
    steady: dict[int, list[float]] = {}
    switched: dict[int, list[float]] = {}
    for sample in samples:
        by_width = steady if sample.width == sample.after else switched
        by_width.setdefault(sample.width, []).append(sample.seconds)
    if len(steady) < 2 or min(steady) != 1:
        return None
    widths = tuple(sorted(steady))
    ratios = [median(switched[n]) / median(steady[n]) for n in widths if n in switched]
    return CostTable(
        widths=widths,
        verify_seconds=tuple(median(steady[n]) for n in widths),
        draft_step_seconds=draft_step,
        switch_ratio=max(median(ratios), 1.0) if ratios else 1.0,
    )
