"""How many tokens a target pass yields under each verification rule, by temperature: a Markdown table.

    python -m benchmarks.rules [--target FILE --draft FILE] [--seeds 4] [--max-tokens 100]

Without files the embedded demo pair is measured. Everything but the rule is equal: prompts, seeds, depth and
the rest of the sampler chain (top-k 40, top-p 0.95, min-p 0.05). The unit is the mean accepted length:
emitted tokens / target passes, fix and bonus included. How busy the machine is makes no difference.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import localspec
from localspec import Session, demo

RULES = ("block", "coupled")
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
DEPTHS = (3, 4)
PROMPTS = {
    "one answer": (
        "What is the capital of France?",
        "Write a Python function that reverses a string.",
        "How does a rainbow form?",
        "What is speculative decoding?",
        "What is 23 + 58?",
        "Give me a JSON record of a person.",
    ),
    "open": (
        "Tell me a short story about a fox.",
        "Tell me a joke.",
        "Write a poem about the sea.",
        "Describe a forest.",
        "What should I cook tonight?",
        "Write me a birthday card for Anna.",
    ),
}
ALL = tuple(prompt for prompts in PROMPTS.values() for prompt in prompts)
USUAL_TEMPERATURE = 0.8  # at which the kinds of prompts are told apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=demo.target_path())
    parser.add_argument("--draft", type=Path, default=demo.draft_path())
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=100)
    options = parser.parse_args()
    with localspec.load(target=options.target, draft=options.draft, threads=1) as session:
        for kind, prompts, temperatures in (
            ("all prompts", ALL, TEMPERATURES),
            *((kind, prompts, (USUAL_TEMPERATURE,)) for kind, prompts in PROMPTS.items()),
        ):
            print(f"\n| {kind}: depth | T | " + " | ".join(RULES) + " |")
            print("|---|---|" + "---|" * len(RULES))
            for depth, temperature in product(DEPTHS, temperatures):
                settings = {"depth": depth, "temperature": temperature, "max_tokens": options.max_tokens}
                print(line(session, prompts, range(options.seeds), settings), flush=True)


def line(session: Session, prompts: Sequence[str], seeds: Sequence[int], settings: dict[str, Any]) -> str:
    """A row of the table: every rule under the same settings."""
    lengths = {
        rule: mean_accepted_length(session, prompts, seeds, settings | {"rule": rule}) for rule in RULES
    }
    cells = " | ".join(f"{length:.2f}" for length in lengths.values())
    return f"| {settings['depth']} | {settings['temperature']} | {cells} |"


def mean_accepted_length(
    session: Session, prompts: Sequence[str], seeds: Sequence[int], settings: dict[str, Any]
) -> float:
    """Emitted tokens / target passes over all prompts and seeds."""
    emitted = cycles = 0
    for prompt, seed in product(prompts, seeds):
        messages = [{"role": "user", "content": prompt}]
        stats = session.run(messages, seed=seed, top_k=40, top_p=0.95, min_p=0.05, **settings).stats
        emitted += stats.emitted
        cycles += stats.cycles
    return emitted / cycles


if __name__ == "__main__":
    main()
