"""Lookup drafting: what a cycle costs by length of the history, and an edit task at measured costs.

    python -m benchmarks.lookup_cost

The edit task returns a text of 2,000 tokens with ten changes; the target is scripted, its costs are those of a
1.5 B model in F16 on two CPU cores.
"""

import random
from statistics import quantiles
from time import perf_counter

from benchmarks.controller.certain import written
from benchmarks.controller.engine import ANY_RULE
from benchmarks.replay_traces import TABLES
from localspec.drafters.drafting import Drafting
from localspec.drafters.lookup import LookupDrafter

HISTORIES = (1_000, 8_000, 32_000, 128_000)  # tokens
CYCLES = 300


def main() -> None:
    print("history    indexing   cycle, median   p95")
    for length in HISTORIES:
        index_seconds, cycles = time_cycles(length)
        cuts = quantiles(cycles, n=20)
        print(f"{length:7}  {index_seconds * 1e3:7.1f} ms  {cuts[9] * 1e6:9.0f} us  {cuts[18] * 1e6:6.0f} us")
    tokens, drafted, passes, seconds = edit_task()
    print(f"edit task: {drafted / tokens:.0%} of {tokens} tokens by lookup, {passes} target passes,")
    print(f"           {tokens / seconds:.2f}x plain decoding")


def time_cycles(length: int) -> tuple[float, list[float]]:
    """A text of four alike parts goes on as its first part did, with a surprise every seven tokens."""
    chance = random.Random(1)
    text = [chance.randrange(1, 300) for _ in range(length // 4)] * 4
    lookup, seconds = LookupDrafter(), []
    began = perf_counter()
    lookup.find(text, 0)
    index_seconds = perf_counter() - began
    for i in range(CYCLES):
        began = perf_counter()
        lookup.find(text, 32)
        text.append(text[length // 4 + i] if i % 7 else chance.randrange(300))
        seconds.append(perf_counter() - began)
    return index_seconds, seconds


def edit_task() -> tuple[int, int, int, float]:
    """Tokens, tokens by lookup, target passes, and their cost in plain steps."""
    chance = random.Random(1)
    text = [chance.choice((chance.randrange(100, 150), chance.randrange(1000, 1800))) for _ in range(2000)]
    answer = list(text)
    for i in chance.sample(range(50, 1950), 10):
        answer[i] = chance.randrange(2000, 3000)
    table = TABLES["F16"]
    drafting = Drafting([], table, (1,), most=32)
    strategy = drafting.strategy(ANY_RULE, depth=None, sampled=False)
    cycles = list(written(strategy, [5, 6, 7, *text, 8, 9], answer, table))
    drafted, seconds = sum(c.accepted for c in cycles), sum(c.verify_seconds for c in cycles)
    return len(answer), drafted, len(cycles), seconds


if __name__ == "__main__":
    main()
