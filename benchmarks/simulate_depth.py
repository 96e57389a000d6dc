"""The depth controller against the best fixed depth in hindsight and against plain decoding, in simulation.

    python -m benchmarks.simulate_depth [--guess] [--unread N] [--seeds N]

6 cost curves x 9 acceptance processes x texts of 100, 300 and 2,000 tokens, each from a cold start: nothing
is known about the draft. Clocks have 6 % noise and 1 % of cycles take four times as long. Every controller
and every fixed depth meets the same texts. Regret is time against the fixed depth that is best on average for
that curve, process and length; 0 is one of the depths.
"""

import argparse
import random
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.controller.engine import OneRunAToken, run_auto, run_fixed
from benchmarks.controller.worlds import CURVES, PROCESSES, Curve, make_text
from localspec.control.acceptance import AcceptanceModel
from localspec.control.cost_table import CostTable
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl

READING = 0.1  # of a draft step: reading a token among many
LENGTHS = (100, 300, 2000)
PLAIN_SECONDS = 0.03  # a plain step
GUESS = CostTable(
    (1, 2, 16),
    (0.4 * PLAIN_SECONDS, 0.44 * PLAIN_SECONDS, PLAIN_SECONDS),
    {"model": 0.04 * PLAIN_SECONDS},
    measured=False,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One curve, process and length; times relative to the alternatives, minus 1."""

    curve: str
    process: str
    length: int
    regret: float
    loss: float
    best: int
    runs: tuple[float, ...]  # regret of each run against the depth that was best for that very text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--doubt", type=float, default=0.7, help="noise of the confidence, on the logit")
    parser.add_argument("--guess", action="store_true", help="costs are a guess instead of a calibration")
    parser.add_argument(
        "--unread", type=int, default=0, help="tokens of a prompt that the draft has not read"
    )
    parser.add_argument(
        "--seeds", type=int, default=16, help="texts of 100 tokens for each cell; fewer longer ones"
    )
    options = parser.parse_args()
    seeds = {100: options.seeds, 300: max(options.seeds // 2, 1), 2000: max(options.seeds // 8, 1)}
    report(
        [
            simulate(curve, process, length, seeds[length], options)
            for curve in map(in_seconds, CURVES)
            for process in PROCESSES
            for length in LENGTHS
        ]
    )


def in_seconds(curve: Curve) -> Curve:
    """A curve whose costs are seconds: a drafter may read for so many of them in a cycle."""
    return replace(
        curve,
        verify=lambda width: PLAIN_SECONDS * curve.verify(width),
        draft=lambda depth: PLAIN_SECONDS * curve.draft(depth),
        overhead=PLAIN_SECONDS * curve.overhead,
    )


def simulate(curve: Curve, process: str, length: int, seeds: int, options: argparse.Namespace) -> Cell:
    autos, fixed = [], []
    reading = READING * curve.draft(1) if options.unread else 0.0
    for seed in range(seeds):
        rng = random.Random(f"{process}{length}{seed}")
        text = make_text(PROCESSES[process], length, rng, options.doubt)
        prompt = reading * options.unread
        fixed.append(
            {depth: run_fixed(curve, text, depth) + (prompt if depth else 0) for depth in (0, *curve.depths)}
        )
        table = GUESS if options.guess else calibrated(curve)
        places, control = make_control(curve, table)
        autos.append(
            run_auto(
                curve, text, places, control, random.Random(seed), unread=options.unread, reading=reading
            )
        )
    means = {depth: mean(times[depth] for times in fixed) for depth in fixed[0]}
    best = min(means, key=lambda depth: means[depth])
    return Cell(
        curve.name,
        process,
        length,
        regret=mean(autos) / means[best] - 1,
        loss=mean(autos) / means[0] - 1,
        best=best,
        runs=tuple(auto / min(times.values()) - 1 for auto, times in zip(autos, fixed, strict=True)),
    )


def make_control(curve: Curve, table: CostTable) -> tuple[CostsByContext, DepthControl]:
    """A controller that knows nothing but costs."""
    places = CostsByContext([table])
    return places, DepthControl(places, OneRunAToken(), AcceptanceModel(), curve.depths, pads=True)


def calibrated(curve: Curve) -> CostTable:
    """What a calibration of this curve would have found."""
    widths = tuple(range(1, curve.depths[-1] + 2))
    seconds = tuple(curve.verify(n) + (curve.overhead if n > 1 else 0.0) for n in widths)
    return CostTable(
        widths,
        seconds,
        {"model": curve.draft(4) / 4},
        reading_seconds={"model": READING * curve.draft(1)},
    )


def report(cells: list[Cell]) -> None:
    print(f"{'':>7}  {'against the best fixed depth':^31}  {'against plain':>13}  {'hindsight by text':^18}")
    names = f"{'mean':>7} {'median':>7} {'p95':>7} {'max':>7}  {'worst':>13}  {'median':>9} {'p95':>8}"
    print(f"{'tokens':>7}  {names}")
    for length in (*LENGTHS, None):
        chosen = [cell for cell in cells if length in (cell.length, None)]
        regrets, runs = [cell.regret for cell in chosen], [run for cell in chosen for run in cell.runs]
        middle, high = quantile(regrets, 0.5), quantile(regrets, 0.95)
        print(
            f"{length or 'all':>7}  {mean(regrets):+7.1%} {middle:+7.1%} {high:+7.1%} {max(regrets):+7.1%}"
            f"  {max(cell.loss for cell in chosen):+13.1%}"
            f"  {quantile(runs, 0.5):+9.1%} {quantile(runs, 0.95):+8.1%}"
        )


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


if __name__ == "__main__":
    main()
