"""How many tokens a target pass yields under each verification rule, by temperature: a Markdown table.

    python -m benchmarks.rules [--target FILE --draft FILE] [--seeds 4] [--max-tokens 100]

Without files the embedded demo pair is measured. Everything but the rule is equal: prompts, seeds, depth and
the rest of the sampler chain (top-k 40, top-p 0.95, min-p 0.05). The unit is the mean accepted length:
emitted tokens / target passes, fix and bonus included. How busy the machine is makes no difference.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import localspec
from localspec import Session, demo

RULES = ("compare", "rejection", "block", "coupled")
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
DEPTHS = (3, 4)
PROMPTS = (
    "What is speculative decoding?",
    "Tell me a short story about a fox.",
    "Write a Python function that reverses a string.",
    "What is the capital of France?",
    "Give me a JSON record of a person.",
    "Tell me a joke.",
    "How does a rainbow form?",
    "Surprise me.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=demo.target_path())
    parser.add_argument("--draft", type=Path, default=demo.draft_path())
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=100)
    options = parser.parse_args()
    with localspec.load(target=options.target, draft=options.draft, threads=1) as session:
        print("| depth | T | " + " | ".join(RULES) + " | block over compare |")
        print("|---|---|" + "---|" * (len(RULES) + 1))
        for depth in DEPTHS:
            for temperature in TEMPERATURES:
                lengths = [
                    mean_accepted_length(
                        session,
                        seeds=range(options.seeds),
                        rule=rule,
                        depth=depth,
                        temperature=temperature,
                        max_tokens=options.max_tokens,
                    )
                    for rule in RULES
                ]
                gain = lengths[RULES.index("block")] / lengths[RULES.index("compare")] - 1.0
                cells = " | ".join(f"{length:.2f}" for length in lengths)
                print(f"| {depth} | {temperature} | {cells} | {gain:+.0%} |", flush=True)


def mean_accepted_length(session: Session, *, seeds: Sequence[int], **options: object) -> float:
    """Emitted tokens / target passes over all prompts and seeds."""
    emitted = cycles = 0
    for prompt in PROMPTS:
        for seed in seeds:
            messages = [{"role": "user", "content": prompt}]
            stats = session.run(messages, seed=seed, top_k=40, top_p=0.95, min_p=0.05, **options).stats
            emitted += stats.emitted
            cycles += stats.cycles
    return emitted / cycles


if __name__ == "__main__":
    main()
