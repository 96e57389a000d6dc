"""How often a draft that was made here is right, on prompts it did not learn from; and what that is worth elsewhere.

    python -m benchmarks.fitted_draft --target FILE --draft FILE [--depth 4] [--each 15] [--priced]

Temperature 0. Kinds of `fit --make` first, then those of `bench` that nothing learned from. "chance" is that of a
drafted token whose predecessors were all right; it needs no clock. With --priced the real loop runs with automatic
depth at prices of larger targets: a draft step of 0.05, 0.10 and 0.14 plain ones, and 1 % more for each token of a
batch.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import localspec
from benchmarks.priced_loop import WIDTHS, Pair
from benchmarks.server.prompts import Task
from localspec.chat.messages import Message
from localspec.control.costs import CostTable
from localspec.drafters.drafting import Drafting
from localspec.drafters.lessons import DEPTHS
from localspec.events import Cycle
from localspec.fit.judging import unseen_prompts
from localspec.measure.prompts import BenchPrompt, built_in_prompts

PRICES = (0.05, 0.10, 0.14)
A_TOKEN_MORE = 0.01
LONGEST = 1200  # characters of a prompt: long documents say nothing about the draft


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--each", type=int, default=15, help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=96, help="of a reply")
    parser.add_argument("--priced", action="store_true")
    options = parser.parse_args()
    with localspec.load(
        target=options.target, draft=options.draft, threads=1, context_length=1024
    ) as session:
        known = chosen(unseen_prompts(session.engine), options.each)
        others = [p for p in built_in_prompts() if len(p.text) < LONGEST]
        for name, prompts in (("fitted kinds", known), ("other prompts", others)):
            counts = [counted(session, prompt, options) for prompt in prompts]
            for kind in dict.fromkeys(prompt.category for prompt in prompts):
                of_kind = [c for c, prompt in zip(counts, prompts, strict=True) if prompt.category is kind]
                print(line(f"  {kind}", of_kind), flush=True)
            print(line(name, counts), flush=True)
        if options.priced:
            for price in PRICES:
                print(f"draft step {price:.2f}: {priced(session, price, known):.2f}x", flush=True)


def chosen(prompts: tuple[BenchPrompt, ...], each: int) -> list[BenchPrompt]:
    return [
        p
        for kind in dict.fromkeys(p.category for p in prompts)
        for p in [p for p in prompts if p.category is kind][:each]
    ]


def counted(
    session: localspec.Session, prompt: BenchPrompt, options: argparse.Namespace
) -> tuple[int, int, int, int]:
    """Tokens that were right, drafted tokens that were judged after right ones, tokens emitted, passes."""
    session.reset()
    right = judged = emitted = passes = 0
    for event in session.stream(prompt.text, temperature=0, depth=options.depth, max_tokens=options.tokens):
        if isinstance(event, Cycle):
            right += event.accepted
            judged += event.accepted + (event.accepted < event.drafted)
            emitted += len(event.tokens)
            passes += 1
    return right, judged, emitted, passes


def line(label: str, counts: list[tuple[int, int, int, int]]) -> str:
    right, judged, emitted, passes = map(sum, zip(*counts, strict=True))
    chance = right / max(judged, 1)
    return f"{label:14} chance {chance:.3f}   {emitted / passes:.2f} tokens a pass   {len(counts)} prompts"


def priced(session: localspec.Session, price: float, prompts: list[BenchPrompt]) -> float:
    """Speed with automatic depth relative to plain decoding, geometric mean."""
    table = CostTable(WIDTHS, tuple(1 + A_TOKEN_MORE * (width - 1) for width in WIDTHS), {"model": price})
    pair = Pair(session, table)
    drafting = Drafting([pair.drafter], table, DEPTHS, most=DEPTHS[-1])
    return math.exp(
        mean(
            math.log(
                pair.speed(
                    task, 0.0, 1, "auto", lambda rule: drafting.strategy(rule, depth=None, sampled=False)
                )
            )
            for task in tasks(session, prompts)
        )
    )


def tasks(session: localspec.Session, prompts: list[BenchPrompt]) -> Iterator[Task]:
    for prompt in prompts:
        text = session.engine.template.render([Message("user", prompt.text)])
        yield Task(prompt.name, prompt.category, text, "and so on " * 200)


if __name__ == "__main__":
    main()
