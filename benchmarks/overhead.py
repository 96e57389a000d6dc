"""What Python costs in a cycle at depth 4 and in a plain step, with simulated passes.

    python -m benchmarks.overhead

Both models give rows from memory, so the time of a cycle is all that the loop, the rule and the sampler take. Rows are
whole, or cut to the largest logits as a GPU chooses them: those of the draft, or of both models where these decide.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import Fixed, Plain
from localspec.llama.shared import TOP_K
from localspec.sampler.passes import Candidates, ForwardPass, Row
from localspec.sampler.sampling import Sampling
from localspec.structure.constraint import Mask

CYCLES, VOCABULARY = 200, 152_000
DEPTH, ROWS, LENGTHS = 4, 8, (500, 64_000)
GRAMMAR = "a grammar"
SETTINGS = {
    "greedy": Sampling(temperature=0.0),
    "default sampling": Sampling(),
    "top-k 0, top-p 1": Sampling(top_k=0, top_p=1.0),
    "all of it": Sampling(top_k=0, top_p=1.0, min_p=0.0),
    "top-k 0, top-p 0.95, min-p 0": Sampling(top_k=0, min_p=0.0),
    "all of it at temperature 1": Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    "all of it, penalties over all": Sampling(
        top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.1, repeat_last_n=-1
    ),
    "penalties over 64": Sampling(repeat_penalty=1.1),
    "penalties over all": Sampling(repeat_penalty=1.1, repeat_last_n=-1),
    "greedy, a grammar": Sampling(temperature=0.0),
    "default sampling, a grammar": Sampling(),
    "all of it, a grammar": Sampling(top_k=0, top_p=1.0, min_p=0.0),
    "greedy, penalties over all": Sampling(temperature=0.0, repeat_penalty=1.1, repeat_last_n=-1),
}


class Half:
    """A grammar that allows every second token."""

    whole_rows, _mask = True, Mask(np.arange(VOCABULARY) % 2 == 0, None)

    def allows(self, token: int, history: Sequence[int]) -> bool:
        return token % 2 == 0

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        return self._mask.applied(row)


class Simulated:
    """A Decoder whose row depends on the position alone."""

    needs_checkpoints, busy_seconds, capacity = False, 0.0, 1 << 17
    length = property(lambda self: len(self.tokens))

    def __init__(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        self.rows, self.tokens = rows, list(tokens)

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        self.tokens += tokens
        ends = range(self.length - rows, self.length)
        return ForwardPass(self.length - len(tokens), tokens, tuple(self.rows[end % ROWS] for end in ends))

    def rollback(self, keep: int) -> None:
        del self.tokens[keep:]

    rewind = rollback

    def checkpoint(self, *, lasting: bool) -> None:
        """Not needed."""


def seconds(
    models: Sequence[Sequence[Row]], sampling: Sampling, constrained: bool, length: int, depth: int
) -> np.ndarray:
    """Of each cycle behind a text of so many tokens."""
    text = np.random.default_rng(1).integers(0, VOCABULARY, length).tolist()
    target, draft = (Simulated(rows, text[:-1]) for rows in models)
    rule = make_rule("auto", sampling, 1, Half() if constrained else None)
    strategy = Fixed(ModelDrafter(draft, lambda _: False), depth, rule) if depth else Plain()
    run = speculate(target, strategy, text, rule=rule, room=1 << 16, is_end=lambda _: False)
    clock = [perf_counter() for _, _ in zip(range(CYCLES), run, strict=False)]
    return np.diff(clock)[5:]


def cut(row: np.ndarray, whole: Callable[[], np.ndarray] | None = None) -> Candidates:
    """The logits that a GPU would choose."""
    ids = (-row).argsort()[:TOP_K].astype(np.int32)
    return Candidates(ids, row[ids], whole)


def main() -> None:
    chance = np.random.default_rng(0)
    target = [chance.normal(0.0, 3.0, VOCABULARY).astype(np.float32) for _ in range(ROWS)]
    for row in target:  # a few tokens are likely, as in a language
        row[chance.integers(0, VOCABULARY, 12)] += np.linspace(20, 8, 12, dtype=np.float32)
    draft = [row + chance.normal(0.0, 0.3, VOCABULARY).astype(np.float32) for row in target]
    print("| median ms: text of | rows | " + " | ".join(f"{n:,}: cycle | plain" for n in LENGTHS) + " |")
    cut_draft = [cut(row) for row in draft]
    ways: dict[str, Sequence[Sequence[Row]]] = {
        "whole rows": (target, draft),
        "cut rows of the draft": (target, cut_draft),
        "cut rows": ([cut(row, lambda row=row: row) for row in target], cut_draft),
    }
    for name, sampling in SETTINGS.items():
        constrained = name.endswith(GRAMMAR)
        decide = not constrained and sampling.logits_needed is not None
        for way, models in list(ways.items())[: 3 if decide else 2]:
            found = (
                seconds(models, sampling, constrained, n, depth) for n in LENGTHS for depth in (DEPTH, 0)
            )
            medians = " | ".join(f"{np.median(of) * 1000:.3f}" for of in found)
            print(f"| {name} | {way} | {medians} |", flush=True)


if __name__ == "__main__":
    main()
