"""Speculated against plain replies at temperature 0.8: a chi-square test of their first tokens.

    python -m benchmarks.sampled_law [--target FILE --draft FILE] [--draws 20000] [--tokens 3] [--rule block]

Both samples come through the public interface, with different seeds; outcomes rare in both share one cell.
"""

import argparse
import math
from collections import Counter
from pathlib import Path

import localspec
from localspec import Session, demo

PROMPT = "Once upon a time there was a"
LEAST_TOGETHER = 10  # draws in both samples together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=demo.target_path())
    parser.add_argument("--draft", type=Path, default=demo.draft_path())
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--rule", default="block")
    wanted = parser.parse_args()
    with localspec.load(target=wanted.target, draft=wanted.draft, threads=1) as session:
        options = {"rule": wanted.rule, "max_tokens": wanted.tokens}
        plain = outcomes(session, range(wanted.draws), speculate=False, **options)
        # The proposals reach as far as the reply, so fixes, bonuses and later cycles all take part.
        seeds = range(wanted.draws, 2 * wanted.draws)
        speculated = outcomes(session, seeds, depth=wanted.tokens, **options)
    statistic, degrees = chi_square(plain, speculated)
    sigma = (statistic - degrees) / math.sqrt(2 * degrees)
    print(
        f"{wanted.draws} plain and as many speculated replies of {wanted.tokens} tokens, rule {wanted.rule}"
    )
    print(f"chi-square {statistic:.1f} on {degrees} degrees of freedom: {sigma:+.2f} standard deviations")


def outcomes(session: Session, seeds: range, **options: object) -> Counter[tuple[int, ...]]:
    """How often each reply came."""
    return Counter(
        session.complete(
            PROMPT, seed=seed, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, **options
        ).tokens
        for seed in seeds
    )


def chi_square(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> tuple[float, int]:
    """Pearson's statistic for two samples of equal size, and its degrees of freedom."""
    cells = Counter[tuple[tuple[int, ...], bool]]()
    for sample, counts in enumerate((one, other)):
        for outcome, count in counts.items():
            common = one[outcome] + other[outcome] >= LEAST_TOGETHER
            cells[outcome if common else (), bool(sample)] += count
    seen = {outcome for outcome, _ in cells}
    pairs = [(cells[outcome, False], cells[outcome, True]) for outcome in seen]
    return sum((a - b) ** 2 / (a + b) for a, b in pairs), len(pairs) - 1


if __name__ == "__main__":
    main()
