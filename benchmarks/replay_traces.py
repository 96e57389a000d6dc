"""Recorded replies x measured costs: automatic depth against every fixed depth, by category and over the mix.

    python -m benchmarks.replay_traces [--runs 10]

What the draft would have guessed comes from benchmarks/traces (a small real pair, greedy); what cycles cost
comes from a 1.5 B target on two CPU cores with a draft of 0.1 B. Every category is a conversation from a cold
start: the first reply knows the costs and nothing about the draft. The mix takes a reply of each in turn.
"""

import argparse
import json
import random
from itertools import zip_longest
from pathlib import Path
from statistics import mean

from benchmarks.controller.engine import OneRunAToken, run_auto, run_fixed
from benchmarks.controller.worlds import Curve, Text
from localspec.control.acceptance import AcceptanceModel
from localspec.control.costs import CostsByContext, CostTable
from localspec.control.depth import DepthControl

TRACES = Path(__file__).parent / "traces"
DEPTHS = tuple(range(1, 8))  # as wide as was measured
WIDTHS = (1, 2, 3, 4, 5, 6, 8)
# Cost of a verify batch relative to one token, measured on two CPU cores (docs/depth.md), draft step 0.07.
TABLES = {
    "F16": CostTable(WIDTHS, (1, 1.27, 1.33, 1.40, 1.50, 1.63, 2.03), {"model": 0.07}),
    "Q8_0": CostTable(WIDTHS, (1, 1.60, 1.80, 1.93, 3.07, 3.24, 2.86), {"model": 0.07}),
    "Q4_0": CostTable(WIDTHS, (1, 1.41, 1.95, 2.03, 2.63, 3.80, 5.31), {"model": 0.07}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="repetitions with different clock noise")
    runs = parser.parse_args().runs
    categories = read_traces()
    for weights, table in TABLES.items():
        print(f"\n{weights}: speed relative to plain decoding")
        print(f"{'':14}  auto  best fixed          auto / best fixed")
        for name, texts in categories.items():
            report(name, table, texts, runs)
        in_turn = [text for row in zip_longest(*categories.values()) for text in row if text is not None]
        fixed = report("the mix", table, in_turn, runs)
        print("the mix at every fixed depth: " + " ".join(f"{depth}:{fixed[depth]:.2f}" for depth in fixed))


def read_traces() -> dict[str, list[Text]]:
    categories: dict[str, list[Text]] = {}
    for path in sorted(TRACES.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            trace = json.loads(line)
            agrees = tuple(a == b for a, b in zip(trace["reply"], trace["draft"], strict=True))
            categories.setdefault(trace["category"], []).append(Text(agrees, tuple(trace["confidence"])))
    return categories


def report(name: str, table: CostTable, texts: list[Text], runs: int) -> dict[int, float]:
    """Print one line; the speed of every fixed depth relative to plain decoding."""
    curve = Curve(name, table.verify, lambda depth: table.run_seconds["model"] * depth, 0.0, DEPTHS)
    times = {depth: sum(run_fixed(curve, text, depth) for text in texts) for depth in (0, *DEPTHS)}
    auto = mean(conversation(curve, table, texts, seed) for seed in range(runs))
    best = min(times, key=lambda depth: times[depth])
    print(
        f"{name:14} {times[0] / auto:5.2f}  {times[0] / times[best]:5.2f} at depth {best:<2}"
        f"  {times[best] / auto - 1:+11.1%}"
    )
    return {depth: times[0] / time for depth, time in times.items()}


def conversation(curve: Curve, table: CostTable, texts: list[Text], seed: int) -> float:
    places, rng = CostsByContext([table]), random.Random(seed)
    control = DepthControl(places, OneRunAToken(), AcceptanceModel(), DEPTHS)
    return sum(run_auto(curve, text, places, control, rng) for text in texts)


if __name__ == "__main__":
    main()
