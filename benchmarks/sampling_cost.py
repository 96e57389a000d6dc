"""What drawing and verifying cost in Python, without any model: a cycle at depth 4 on synthetic rows.

python -m benchmarks.sampling_cost [--vocabulary 128256] [--depth 4] [--repeats 300]
"""

import argparse
from time import perf_counter

import numpy as np

from localspec.algorithm.protocols import Draw, Proposal, Rule
from localspec.algorithm.verification import make_rule
from localspec.passes import Candidates, Row
from localspec.sampler.chain import largest
from localspec.sampler.sampling import Sampling

SETTINGS = {
    "greedy": ("greedy", Sampling(temperature=0.0)),
    "block": ("block", Sampling()),
    "rejection": ("rejection", Sampling()),
    "coupled": ("coupled", Sampling()),
    "compare": ("compare", Sampling()),
    "block, repeat penalty 1.1": ("block", Sampling(repeat_penalty=1.1)),
    "block, top-k off": ("block", Sampling(top_k=0)),
    "coupled, top-k off": ("coupled", Sampling(top_k=0)),
    "block, top-k and min-p off": ("block", Sampling(top_k=0, min_p=0.0)),
    "block, nothing truncated": ("block", Sampling(top_k=0, top_p=1.0, min_p=0.0)),
}
HISTORY = list(range(1000, 1500))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=300)
    options = parser.parse_args()
    target, draft = synthetic_rows(options.vocabulary, options.depth)
    print(f"Vocabulary {options.vocabulary:,}, depth {options.depth}, milliseconds in a cycle:\n")
    print("| rule | draw | verify | sum, median | sum, p95 | from backend candidates |")
    print("|---|---|---|---|---|---|")
    for name, (rule_name, sampling) in SETTINGS.items():
        seconds = [
            cycle_seconds(make_rule(rule_name, sampling, seed), target, draft)
            for seed in range(options.repeats)
        ]
        drawn, verified, total = (np.array(column) * 1000 for column in zip(*seconds, strict=True))
        few = from_candidates(rule_name, sampling, target, draft, options.repeats)
        print(
            f"| {name} | {np.median(drawn):.2f} | {np.median(verified):.2f} | {np.median(total):.2f} "
            f"| {np.quantile(total, 0.95):.2f} | {few} |"
        )


def synthetic_rows(vocabulary: int, depth: int) -> tuple[list[Row], list[Row]]:
    """Rows with a long tail and some dozens of likely tokens; the draft's differ a little."""
    random = np.random.default_rng(0)
    target: list[Row] = []
    for _ in range(depth + 1):
        row = random.normal(0.0, 2.0, vocabulary).astype(np.float32)
        row[random.integers(0, vocabulary, 40)] += np.linspace(8.0, 20.0, 40, dtype=np.float32)
        target.append(row)
    draft: list[Row] = [
        row + random.normal(0.0, 0.5, vocabulary).astype(np.float32) for row in target[:depth]
    ]
    return target, draft


def cycle_seconds(rule: Rule, target: list[Row], draft: list[Row]) -> tuple[float, float, float]:
    """Seconds for drawing, for verifying, and for both."""
    history, draws = list(HISTORY), []
    began = perf_counter()
    for row in draft:
        draw: Draw = rule.draw(row, history, len(HISTORY))
        draws.append(draw)
        history.append(draw.token)
    drawn = perf_counter()
    rule.verify(target, Proposal(tuple(d.token for d in draws), tuple(d.q for d in draws)), HISTORY)
    ended = perf_counter()
    return drawn - began, ended - drawn, ended - began


def from_candidates(
    rule_name: str, sampling: Sampling, target: list[Row], draft: list[Row], repeats: int
) -> str:
    """Median milliseconds where the backend has selected the candidates; "" where it cannot."""
    needed = make_rule(rule_name, sampling, 0).chain.candidates_needed()
    if needed is None:
        return ""

    def few(row: Row) -> Candidates:
        ids, logits = largest(row, needed)
        return Candidates(ids.astype(np.int32), logits.astype(np.float32))

    target, draft = [few(row) for row in target], [few(row) for row in draft]
    seconds = [cycle_seconds(make_rule(rule_name, sampling, seed), target, draft) for seed in range(repeats)]
    return f"{np.median([total for _, _, total in seconds]) * 1000:.2f}"


if __name__ == "__main__":
    main()
