"""Devices that record their passes (CUDA graphs), in simulation: what drafting gains there, and what it claims.

    python -m benchmarks.simulate_prices [--seeds N] [--guess]

A pass after one of another width is launched kernel by kernel (direct), the second equal one is recorded (capture),
from the third on it is replayed. Each row is one share that replaying saves, one price of a draft token and one
acceptance process, over conversations of six replies of 300 tokens. Columns: the best fixed depth, and automatic
depth, relative to plain decoding (which replays); what `stats.speedup` claims, relative to the truth: over all
replies, and of the middle and the worst in twenty single replies. The last lines are first replies of 100 tokens on a
device whose kernels are not loaded yet, with and without the warm-up at load.
"""

import argparse
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import mean, median

from benchmarks.controller.device import Device
from benchmarks.controller.engine import run_auto, run_fixed
from benchmarks.controller.worlds import CURVES, PROCESSES, Curve, Launches, Text, make_text
from benchmarks.simulate_depth import calibrated, make_control, quantile
from localspec.control.costs import CostTable
from localspec.control.depth import PlainProbes
from localspec.drafters.lessons import guess_for
from localspec.tally import Tally
from localspec.timing import PlainClock

SAVED = (0.0, 0.1, 0.2, 0.3)  # of a direct pass, by replaying
DRAFTS = (0.12, 0.30)  # of a plain step
REPLIES, TOKENS, FIRST_TOKENS = 6, 300, 100
DOUBT = 0.7
CAPTURE = 0.5  # plain steps that recording takes longer
LOADING = 8.0  # plain steps: 150 ms where one takes 20
COMMON = (1, 2, 3, 4, 5, 6, 7, 8)  # widths of the warm-up


@dataclass(frozen=True, slots=True)
class Result:
    """True and claimed speed-ups of replies, and the seconds behind them."""

    plain: float
    spent: float
    claims: tuple[float, ...]  # of single replies, relative to the truth
    claimed: float  # over all

    @property
    def speedup(self) -> float:
        return self.plain / self.spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4, help="conversations in each row")
    parser.add_argument("--guess", action="store_true", help="nothing was measured before the first reply")
    options = parser.parse_args()
    print(
        f"{'saved':>5} {'draft':>5} {'acceptance':18} {'best fixed':>14} {'auto':>5}  claim of all, single p50, p95"
    )
    results = []
    for saved in SAVED:
        for draft in DRAFTS:
            for process in PROCESSES:
                curve = recorded(saved, draft)
                found = conversations(curve, process, options)
                depth, fixed = best_fixed(curve, process, options.seeds)
                results.append((saved, fixed, found))
                print(
                    f"{saved:5.0%} {draft:5.0%} {process:18} {fixed:6.2f} at {depth:<4} {found.speedup:5.2f}  "
                    f"{claims(found)}",
                    flush=True,
                )
    for saved in SAVED:
        chosen = [(fixed, found) for each, fixed, found in results if each == saved]
        lost = sorted(1 - found.speedup / max(fixed, 1.0) for fixed, found in chosen)
        worst = max(abs(found.claimed - 1) for _, found in chosen)
        print(
            f"saved {saved:.0%}: auto behind the best fixed depth by {mean(lost):+.1%}, median {median(lost):+.1%}, "
            f"most {lost[-1]:+.1%}; worst claim off by {worst:.1%}"
        )
    first_replies(options.seeds)


def recorded(saved: float, draft: float) -> Curve:
    """The GPU of `simulate_depth` with recorded passes; a draft is small, so launching is more of its time."""
    direct, capture = saved / (1 - saved), CAPTURE if saved else 0.0
    launches = Launches(direct, direct + capture, 2 * draft * direct, draft * (2 * direct + 2 * capture))
    return replace(CURVES[0], draft=lambda depth: draft * depth, launches=launches)


def texts_of(process: str, seed: int) -> list[Text]:
    rng = random.Random(f"{process}{seed}")
    return [make_text(PROCESSES[process], TOKENS, rng, DOUBT) for _ in range(REPLIES)]


def best_fixed(curve: Curve, process: str, seeds: int) -> tuple[int, float]:
    """The depth that is best on average, and its speed relative to plain decoding."""
    texts = [text for seed in range(seeds) for text in texts_of(process, seed)]
    seconds = {depth: sum(run_fixed(curve, text, depth) for text in texts) for depth in (0, *curve.depths)}
    best = min(seconds, key=lambda depth: seconds[depth])
    return best, seconds[0] / seconds[best]


def conversations(curve: Curve, process: str, options: argparse.Namespace) -> Result:
    parts = []
    for seed in range(options.seeds):
        table = table_for(curve, guess=options.guess)
        parts.append(replies(curve, texts_of(process, seed), table, Device(curve), random.Random(seed)))
    return joined(parts)


def table_for(curve: Curve, *, guess: bool) -> CostTable:
    return guess_for("cuda" if curve.launches.direct else "vulkan", {}) if guess else calibrated(curve)


def replies(
    curve: Curve, texts: Iterable[Text], table: CostTable, device: Device, rng: random.Random
) -> Result:
    """One conversation."""
    found = []
    places, control = make_control(curve, table)
    anchors = PlainProbes()
    for text in texts:
        tally = Tally(plain=PlainClock(lambda: places.costs.plain_step_seconds))
        spent = run_auto(curve, text, places, control, rng, device=device, anchors=anchors, tally=tally)
        plain, stats = run_fixed(curve, text, 0), tally.stats()
        claim = stats.speedup.value / (plain / spent) if stats.speedup else None
        found.append((plain, spent, claim))
    known = [(plain, claim) for plain, _, claim in found if claim is not None]
    return Result(
        sum(plain for plain, _, _ in found),
        sum(spent for _, spent, _ in found),
        tuple(claim for _, claim in known),
        sum(plain * claim for plain, claim in known) / sum(plain for plain, _ in known) if known else 1.0,
    )


def joined(parts: list[Result]) -> Result:
    plain = sum(part.plain for part in parts)
    return Result(
        plain,
        sum(part.spent for part in parts),
        tuple(claim for part in parts for claim in part.claims),
        sum(part.plain * part.claimed for part in parts) / plain,
    )


def claims(found: Result) -> str:
    off = sorted(abs(claim - 1) for claim in found.claims)
    return f"{found.claimed - 1:+6.1%} {quantile(off, 0.5):6.1%} {quantile(off, 0.95):6.1%}"


def first_replies(seeds: int) -> None:
    """The very first reply of a pair that nobody measured, on a device that has loaded nothing."""
    print("\nfirst replies of 100 tokens, nothing measured: true, claimed / true")
    curve = recorded(0.2, 0.12)
    curve = replace(curve, launches=replace(curve.launches, first=LOADING))
    for name, warm in (("no warm-up", ()), ("warm-up", COMMON)):
        parts = []
        for seed in range(8 * seeds):
            rng = random.Random(seed)
            text = make_text(PROCESSES["iid 0.7"], FIRST_TOKENS, rng, DOUBT)
            parts.append(replies(curve, [text], table_for(curve, guess=True), Device(curve, warm), rng))
        found = joined(parts)
        print(f"{name:12} {found.speedup:5.2f}  {claims(found)}")


if __name__ == "__main__":
    main()
