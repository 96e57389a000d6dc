"""What a draft that knows nothing costs: automatic drafting against plain decoding, live and in turns; Markdown.

    python -m benchmarks.useless_draft --cache DIR [--type f16] [--threads 1] [--rounds 6] [--max-tokens 512]

Target and draft are the demo pair in larger shapes; the rows of the draft's vocabulary are moved, so it still
answers, at full cost, but with other tokens than it means. Lookup is part of automatic drafting and might win
in a text that repeats itself; `from lookup` says how much it did. Every round starts without lessons, so each
one finds out anew.
"""

import argparse
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader

import localspec
from benchmarks.server.models import enlarged
from localspec.events import Reply
from localspec.measure.report_machine import this_machine
from localspec.measure.statistics import mean_ratio

MOVED_BY = 1000  # rows of the vocabulary
PROMPTS = ("Tell me a story about a dragon.", "What is speculative decoding?")


def main() -> None:
    options = parse()
    files = enlarged(options.cache, options.type)
    draft = options.cache / f"useless-0.1b-{options.type}.gguf"
    if not draft.exists():
        scramble(files.draft, draft)
    print(f"{this_machine(options.threads).sentence()}\n")
    print(f"{files.name}, {options.max_tokens} tokens, {options.rounds} rounds without lessons\n")
    print("| T | automatic / plain | 95 % | accepted | cycles that drafted | from lookup |")
    print("|---|---|---|---|---|---|")
    for temperature in map(float, options.temperatures.split(",")):
        logs: list[float] = []
        replies: list[Reply] = []
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory() as home:
                os.environ["LOCALSPEC_HOME"] = home
                replies += one_round(files.target, draft, temperature, number, logs, options)
        ratio = mean_ratio([[[log] for log in logs]])
        drafted, cycles = sum(r.stats.drafted for r in replies), sum(r.stats.cycles for r in replies)
        drafting = cycles - sum(r.stats.cycles_by_depth[0] for r in replies)
        print(
            f"| {temperature:g} | {ratio.middle:.3f}x | {ratio.low:.3f} to {ratio.high:.3f} "
            f"| {sum(r.stats.accepted for r in replies) / max(drafted, 1):.0%} | {drafting / cycles:.1%} "
            f"| {sum(r.stats.from_lookup for r in replies) / sum(r.stats.emitted for r in replies):.1%} |",
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
    shutil.copy(source, out)
    reader = GGUFReader(out, "r+")
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    embedding.data[:] = np.roll(embedding.data, MOVED_BY, axis=0)
    embedding.data.flush()


def one_round(
    target: Path,
    draft: Path,
    temperature: float,
    number: int,
    logs: list[float],
    options: argparse.Namespace,
) -> list[Reply]:
    """Both ways on every prompt, in an order that turns around; the automatic replies."""
    found: list[Reply] = []
    with localspec.load(target=target, draft=draft, threads=options.threads, context_length=2048) as session:
        vocabulary = session.engine.vocabulary
        no_end = {t: float("-inf") for t in range(vocabulary.size) if vocabulary.is_end(t)}
        settings = {"temperature": temperature, "logit_bias": no_end, "max_tokens": options.max_tokens}
        for place, prompt in enumerate(PROMPTS):
            rates: dict[object, float] = {}
            for depth in (0, "auto") if (number + place) % 2 else ("auto", 0):
                session.reset()
                reply = session.run(prompt, depth=depth, **settings)
                rates[depth] = reply.stats.tokens_per_second
                if depth == "auto":
                    found.append(reply)
            logs.append(math.log(rates["auto"] / rates[0]))
            print(f"T={temperature:g} round {number + 1}: {rates['auto'] / rates[0]:.3f}", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
