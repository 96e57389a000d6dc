"""Measure the exported pair per topic and print a Markdown table: acceptance, tokens per pass, perplexity.

    python tools/demo/measure.py [--questions 60] [--depth 4] [--max-tokens 160]

The questions come from a part of the corpus that is never trained on.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
from corpus.mix import SHARES, exchange, library_text
from corpus.spin import Turn
from lowlevel import Model

sys.path.append(str(Path(__file__).parents[2]))

import localspec
from localspec.demo import draft_path, target_path

TEMPERATURES = (0.0, 0.8)
SEED = "measure"


@dataclass(frozen=True, slots=True)
class Counts:
    """What speculation did on one topic at one temperature."""

    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    cycles: int = 0

    def __add__(self, stats: object) -> "Counts":
        return Counts(*(getattr(self, name) + getattr(stats, name) for name in self.__slots__))

    def __str__(self) -> str:
        return f"{self.accepted / max(1, self.drafted):.0%} | {self.emitted / max(1, self.cycles):.2f}"


def turns(topic: str) -> Iterator[Turn]:
    """First questions and answers on a topic, always the same."""
    rng = Random(f"{SEED}/{topic}")
    while True:
        yield exchange(topic, rng)[0]


def library_pieces() -> Iterator[str]:
    """Beginnings of library code, to be continued."""
    rng = Random(SEED)
    while True:
        yield library_text(rng)[:200]


def measure(
    session: localspec.Session, topic: str, temperature: float, options: argparse.Namespace
) -> Counts:
    """Answer the topic's questions and count."""
    counts, settings = Counts(), {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    settings |= {"depth": options.depth, "max_tokens": options.max_tokens}
    for number, turn in enumerate(islice(turns(topic), options.questions)):
        session.reset()
        counts += session.run(turn.asks, seed=number, **settings).stats
    return counts


def measure_library(session: localspec.Session, temperature: float, options: argparse.Namespace) -> Counts:
    """Continue library code as raw text and count."""
    counts, settings = Counts(), {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    for number, text in enumerate(islice(library_pieces(), options.questions // 4)):
        reply = session.complete(text, seed=number, depth=options.depth, max_tokens=64, **settings)
        counts += reply.stats
    return counts


def perplexity(path: Path, topic: str, questions: int) -> float:
    """Per token of the corpus's own answers, the end of the reply included."""
    bits: list[float] = []
    with Model(path) as model:
        for turn in islice(turns(topic), questions):
            prompt = model.tokens(f"<|im_start|>user\n{turn.asks}<|im_end|>\n<|im_start|>assistant\n")
            answer = model.tokens(f"{turn.says}<|im_end|>")
            rows = model.logits(prompt + answer)[len(prompt) - 1 : -1].astype(np.float64)
            rows -= rows.max(axis=1, keepdims=True)
            chosen = rows[np.arange(len(answer)), answer]
            bits += list(np.log(np.exp(rows).sum(axis=1)) - chosen)
    return float(np.exp(np.mean(bits)))


def main() -> None:
    """Print one line per topic."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=160)
    options = parser.parse_args()
    columns = ("topic", "T=0: accepted", "tokens a pass", "T=0.8: accepted", "tokens a pass")
    print(f"| {' | '.join(columns)} | perplexity, target | draft |")
    print("|---|---|---|---|---|---|---|")
    with localspec.load("demo", context_length=1024) as session:
        for topic in SHARES:
            counts = " | ".join(str(measure(session, topic, t, options)) for t in TEMPERATURES)
            known = [
                f"{perplexity(path, topic, options.questions):.2f}" for path in (target_path(), draft_path())
            ]
            print(f"| {topic} | {counts} | {' | '.join(known)} |", flush=True)
        counts = " | ".join(str(measure_library(session, t, options)) for t in TEMPERATURES)
        print(f"| library code, continued | {counts} | | |")


if __name__ == "__main__":
    main()
