"""What `remember_logits` costs a cycle: the reply's thread copies rows, another one finds the likeliest tokens.

    python -m benchmarks.logging_cost TARGET [--draft FILE] [--depth 4] [--replies 20] [--tokens 48]

Two sessions of the same files take turns, one of which logs; the same prompts in the same order. The first table has
the thread's own work beside llama.cpp (`other_seconds`), the second the whole cycle.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

import localspec
from localspec.events import Cycle
from localspec.measure.prompts import built_in_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--replies", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    with ExitStack() as stack:
        os.environ["LOCALSPEC_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
        sessions = {
            logs: stack.enter_context(
                localspec.load(
                    target=options.target,
                    draft=options.draft,
                    threads=1,
                    context_length=1024,
                    remember_logits=logs,
                )
            )
            for logs in (False, True)
        }
        found: dict[bool, list[Cycle]] = {False: [], True: []}
        prompts = built_in_prompts()
        for number in range(options.replies):
            for logs in (False, True) if number % 2 else (True, False):
                found[logs] += cycles(sessions[logs], prompts[number % len(prompts)].text, options)
    print("| tokens emitted | cycles | other, off | other, on | extra | whole cycle, off | on |")
    print("|---|---|---|---|---|---|---|")
    for emitted in (*range(1, options.depth + 2), None):
        without, logged = (
            [cycle for cycle in found[logs] if emitted in (None, len(cycle.tokens))] for logs in (False, True)
        )
        if without and logged:
            off, on = median([c.other_seconds for c in without]), median([c.other_seconds for c in logged])
            whole = [f"{median([c.seconds for c in these]):.2f} ms" for these in (without, logged)]
            print(
                f"| {emitted or 'any'} | {len(logged)} | {off:.3f} ms | {on:.3f} ms | {on - off:.3f} ms | "
                f"{whole[0]} | {whole[1]} |"
            )


def cycles(session: localspec.Session, prompt: str, options: argparse.Namespace) -> list[Cycle]:
    """Of one reply, without the first two."""
    session.reset()
    events = session.stream(
        prompt, temperature=options.temperature, seed=1, depth=options.depth, max_tokens=options.tokens
    )
    return [event for event in events if isinstance(event, Cycle)][2:]


def median(seconds: Sequence[float]) -> float:
    """In milliseconds."""
    return float(np.median(seconds)) * 1000


if __name__ == "__main__":
    main()
