"""Recorded edits, tool calls and other replies against the drafter for copies. No model is loaded.

    python -m benchmarks.simulated_edits [--selection]

`edits.json` contains prompts and greedy replies of Qwen2.5-Coder 1.5B in Q4_K_M, as text and inside a tool call; the
chances of `copies.py` were fitted to the groups "edits" and "calls", and to no other. A draft token is accepted
if it equals the recorded one. Each pass takes the prefix of the proposal with the most expected tokens per second, at
a table's costs by width. Printed: plain time / time of the passes, its harmonic mean for each group, and each reply.
With `--selection`, the strategy of a reply decides, with its budget, the first one at these costs. With `--noise`, the
seconds of passes deviate by this share, and the first pass of each width takes FIRST times as long.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

from benchmarks.simulated_pair import ANY_RULE
from localspec.algorithm.protocols import Proposal
from localspec.chat.request import Request
from localspec.control.costs import TARGET, CostTable
from localspec.control.timing import SEVERAL
from localspec.drafters import selection
from localspec.drafters.copies import CopyDrafter
from localspec.drafters.selection import best_prefix
from localspec.events import Cycle, Origin
from localspec.loading.drafting import Drafting, estimated_costs
from localspec.sampler.sampling import Sampling

MOST = 63
FIRST = 1.2  # measured with the real pair: 1.0 to 1.6
PROMPT = 512  # tokens of a prompt's part, whose pass is measured first
TABLES = {  # batch widths, and seconds of a pass / seconds of a plain step
    # Qwen2.5-Coder 1.5B in Q4_K_M, two threads of an AVX-512 processor, 300 tokens in the cache
    "two cores": CostTable(
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 33, 65),
        (1, 1.65, 2.1, 2.7, 3.2, 3.72, 4.33, 4.44, 4.86, 5.39, 5.4, 7.0, 9.5, 17.0),
        {},
    ),
    # another AVX-512 processor and llama.cpp 0.3.36, 600 tokens in the cache: fast from 16 rows on, in blocks of 16
    "blocks of 16": CostTable(
        (1, 2, 3, 4, 6, 8, 9, 15, 16, 17, 20, 24, 31, 32, 33, 47, 48, 49, 63, 64, 512),
        (
            1,
            1.6,
            2.2,
            2.75,
            4.1,
            5.6,
            6.2,
            9.5,
            7.4,
            8,
            9,
            10.5,
            14.2,
            12.8,
            14,
            19,
            18.5,
            19.5,
            25,
            23.5,
            150,
        ),
        {},
    ),
    # assumed: a graphics card, where wide passes cost little
    "a card": CostTable((1, 2, 4, 8, 16, 24, 33, 65), (1, 1.05, 1.12, 1.3, 1.6, 2.0, 2.4, 3.6), {}),
}
Propose = Callable[[list[int]], Proposal]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--selection", action="store_true", help="let the strategy of a reply decide")
    parser.add_argument(
        "--guess", action="store_true", help="the strategy begins with the estimated costs of a CPU"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="0.15 is what a laptop in use has")
    options = parser.parse_args()
    ticks = count()
    setattr(selection, "perf_counter", lambda: next(ticks) / 1e6)  # noqa: B010  a decision takes a microsecond
    replies = json.loads((Path(__file__).parent / "edits.json").read_text(encoding="utf-8"))
    for name, table in TABLES.items():
        for group in dict.fromkeys(reply["group"] for reply in replies):
            of_group = [reply for reply in replies if reply["group"] == group]
            found = [
                selected(reply, table, guess=options.guess, noise=options.noise)
                if options.selection or options.guess
                else copied(reply, table)
                for reply in of_group
            ]
            parts = " ".join(f"{x:.2f}" for x in found)
            print(f"{name:10} {group:12} {harmonic_mean(found):.3f}: {parts}", flush=True)


def copied(reply: dict[str, Any], table: CostTable) -> float:
    """Return the speed relative to plain decoding if the drafter's own chances decide."""
    drafter = CopyDrafter()
    drafter.add(spelled_of(reply))

    def propose(text: list[int]) -> Proposal:
        found = drafter.propose(text, MOST)
        depth, value = best_prefix(found.confidences, float("inf"), table.verify)
        return found.first(depth if value > 1 else 0)

    return replay(reply, propose, table, lambda cycle: None)


def selected(reply: dict[str, Any], table: CostTable, *, guess: bool, noise: float = 0.0) -> float:
    """Return the speed relative to plain decoding of an automatic reply, the first one of a process."""
    drafting = Drafting([], estimated_costs("cpu", {}) if guess else table, most=MOST)
    for _ in range(0 if guess else SEVERAL):  # the costs are confirmed
        drafting.costs.learn_verify(2, table.verify(2), drafted=True)
    if guess:
        drafting.costs.learn_prefill(TARGET, PROMPT, table.verify(PROMPT))
    strategy = drafting.strategy(ANY_RULE, Request(Sampling(temperature=0.0)), spelled=spelled_of(reply))
    return replay(reply, lambda text: strategy.propose(text, MOST), table, strategy.learn, noise)


def spelled_of(reply: dict[str, Any]) -> list[list[int]]:
    return [reply["spelled_tokens"]] if "spelled_tokens" in reply else []


def replay(
    reply: dict[str, Any],
    propose: Propose,
    table: CostTable,
    learn: Callable[[Cycle], None],
    noise: float = 0.0,
) -> float:
    text, answer, seconds = list(reply["prompt_tokens"]), list[int](reply["reply_tokens"]), 0.0
    chance, seen = random.Random(1), set[int]()
    while answer:
        found = propose(text)
        kept = agreed(found.tokens, answer)
        tokens, width = tuple(answer[: kept + 1]), len(found.tokens) + 1
        took = table.verify(width)
        if noise:
            took *= chance.lognormvariate(0, noise) * (1 if width in seen else FIRST)
            seen.add(width)
        origins = (Origin.ACCEPTED,) * (len(tokens) - 1) + (Origin.FIX if found.tokens else Origin.PLAIN,)
        learn(Cycle(tokens, origins, found.tokens, kept, width - 1, found.source, width, 0.0, took, 0.0))
        text += tokens
        del answer[: len(tokens)]
        seconds += took
    return len(reply["reply_tokens"]) / seconds


def agreed(draft: Sequence[int], answer: Sequence[int]) -> int:
    pairs = zip(draft, answer, strict=False)
    return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(draft), len(answer)))


if __name__ == "__main__":
    main()
