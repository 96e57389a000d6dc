"""Two long conversations that take turns in one cache: when the first token of each reply is there.

    python -m benchmarks.two_conversations --target FILE [--lines 450] [--rounds 3]

Once with the texts that another took the place of saved in the computer's memory, and once read again.
"""

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

import localspec
from localspec.events import Cycle, Started
from localspec.models import load


def first_token_seconds(target: Path, word: str, lines: int) -> tuple[float, int]:
    """Of a reply in the conversation of that word; and how many tokens of the prompt were read for it."""
    prompt = f"The {word} number is noted. " * lines + "What is noted?"
    began = perf_counter()
    for event in localspec.stream(prompt, target=target, max_tokens=4, temperature=0.0):
        if isinstance(event, Started):
            read = event.prompt_tokens - event.reused_tokens
        if isinstance(event, Cycle):
            break
    return perf_counter() - began, read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=450)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    share = load.SAVED_SHARE
    for name, load.SAVED_SHARE in (("saved", share), ("read again", 0.0)):
        localspec.unload()
        for word in ("red", "blue"):
            first_token_seconds(options.target, word, options.lines)
        turns = [
            first_token_seconds(options.target, word, options.lines)
            for _ in range(options.rounds)
            for word in ("red", "blue")
        ]
        read = {read for _, read in turns}
        print(
            f"{name}: first token after {median(seconds for seconds, _ in turns):.3f} s, tokens read: {read}"
        )


if __name__ == "__main__":
    main()
