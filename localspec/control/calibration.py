"""Measure the cost of passes while no reply runs: at load, after a reply, or on request."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median

from localspec.algorithm.protocols import Decoder, Drafter
from localspec.control.costs import CostTable

# Batch widths to time. They include 8 and 9, because llama.cpp uses other kernels from 9 tokens on.
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 64)
# Each width is timed this many times. The first two passes are slower: later, a GPU replays a recorded graph.
PASSES = 5


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
    # A slow pass runs only twice, because a replay of its graph would hardly be faster. The second run's time counts.
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
