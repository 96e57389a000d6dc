"""What a draft that knows nothing costs: automatic drafting against plain decoding, live and in turns; Markdown.

    python -m benchmarks.useless_draft --cache DIR [--type f16] [--threads 1] [--rounds 6] [--max-tokens 512]

Target and draft are the demo pair in larger shapes; the rows of the draft's vocabulary are moved, so it still
answers, at full cost, but with other tokens than it means. Lookup is part of automatic drafting and may win in a text
that repeats itself; `lost by the draft` leaves it out: what the cycles of the draft model took, less what plain
decoding took for their tokens, as a share of the plain time of all tokens. Every round starts without lessons, so each
one finds out anew.
"""

import argparse
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from gguf import GGUFReader

import localspec
from benchmarks.server.models import enlarged
from localspec.events import Cycle, Finished, Reply, Source
from localspec.measure.machine import this_machine
from localspec.measure.statistics import mean_ratio

MOVED_BY = 1000  # rows of the vocabulary
PROMPTS = ("Tell me a story about a dragon.", "What is speculative decoding?")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reply with automatic drafting against the same prompt without."""

    reply: Reply
    speedup: float
    lost: float  # by the draft model's cycles / plain time of the reply


def main() -> None:
    options = parse()
    files = enlarged(options.cache, options.type)
    draft = options.cache / f"useless-0.1b-{options.type}.gguf"
    if not draft.exists():
        scramble(files.draft, draft)
    print(f"{this_machine(options.threads).sentence()}\n")
    print(f"{files.name}, {options.max_tokens} tokens, {options.rounds} rounds without lessons\n")
    print("| T | automatic / plain | 95 % | lost by the draft, median (worst) | accepted | from lookup |")
    print("|---|---|---|---|---|---|")
    for temperature in map(float, options.temperatures.split(",")):
        found: list[Outcome] = []
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory() as home:
                os.environ["LOCALSPEC_HOME"] = home
                found += one_round(files.target, draft, temperature, number, options)
        ratio = mean_ratio([[[math.log(outcome.speedup)] for outcome in found]])
        stats = [outcome.reply.stats for outcome in found]
        lost = sorted(outcome.lost for outcome in found)
        print(
            f"| {temperature:g} | {ratio.middle:.3f}x | {ratio.low:.3f} to {ratio.high:.3f} "
            f"| {median(lost):.1%} ({lost[-1]:.1%}) "
            f"| {sum(s.accepted for s in stats) / max(sum(s.drafted for s in stats), 1):.0%} "
            f"| {sum(s.from_lookup for s in stats) / sum(s.emitted for s in stats):.1%} |",
            flush=True,
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="for the enlarged models, gigabytes")
    parser.add_argument("--type", default="f16")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=512)
    return parser.parse_args()


def scramble(source: Path, out: Path) -> None:
    """A copy whose tokens mean something else: the rows of the matrix for input and output are moved."""
    unfinished = out.with_suffix(".unfinished")
    shutil.copy(source, unfinished)
    reader = GGUFReader(unfinished, "r+")
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    embedding.data[:] = np.roll(embedding.data, MOVED_BY, axis=0)
    embedding.data.flush()
    unfinished.replace(out)


def one_round(
    target: Path, draft: Path, temperature: float, number: int, options: argparse.Namespace
) -> list[Outcome]:
    """Both ways on every prompt, in an order that turns around."""
    found: list[Outcome] = []
    with localspec.load(target=target, draft=draft, threads=options.threads, context_length=2048) as session:
        vocabulary = session.engine.vocabulary
        no_end = {t: float("-inf") for t in range(vocabulary.size) if vocabulary.is_end(t)}
        settings = {"temperature": temperature, "logit_bias": no_end, "max_tokens": options.max_tokens}
        for place, prompt in enumerate(PROMPTS):
            runs: dict[object, tuple[Reply, list[Cycle]]] = {}
            for depth in (0, "auto") if (number + place) % 2 else ("auto", 0):
                session.reset()
                events = list(session.stream(prompt, depth=depth, **settings))
                assert isinstance(events[-1], Finished)
                runs[depth] = events[-1].reply, [event for event in events if isinstance(event, Cycle)]
            found.append(outcome_of(*runs["auto"], plain=runs[0][0]))
            print(
                f"T={temperature:g} round {number + 1}: {found[-1].speedup:.3f}, lost {found[-1].lost:.1%}",
                file=sys.stderr,
                flush=True,
            )
    return found


def outcome_of(reply: Reply, cycles: Sequence[Cycle], *, plain: Reply) -> Outcome:
    step = plain.stats.decode_seconds / plain.stats.emitted
    lost = sum(
        cycle.seconds - len(cycle.tokens) * step
        for cycle in cycles
        if cycle.depth and cycle.source is not Source.LOOKUP
    )
    speedup = reply.stats.tokens_per_second / plain.stats.tokens_per_second
    return Outcome(reply, speedup, lost / (step * reply.stats.emitted))


if __name__ == "__main__":
    main()
