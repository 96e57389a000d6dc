"""Replies beside a busy program: the automatic number of threads against every fixed one.

    python -m benchmarks.busy_cpu TARGET.gguf [--loops 1] [--rounds 10] [--tokens 200]

Sides take turns in every round, each with a reply of the same prompt at temperature 0 without speculation, while so
many processes do nothing but count. Printed: the median of tokens per second, first token included, and the spread.
"""

import argparse
import math
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import localspec
from localspec.llama.threads import default_threads

PROMPT = "Once upon a time, in a village by the sea, there lived an old clockmaker who"
AUTO = "automatic"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--loops", type=int, default=1, help="busy processes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    counts = [None, *range(1, default_threads() + 1)]
    with ExitStack() as opened:
        sides = {
            AUTO if threads is None else f"{threads} threads": opened.enter_context(
                localspec.load(target=options.target, draft="lookup", speculate=False, threads=threads)
            )
            for threads in counts
        }
        opened.enter_context(busy(options.loops))
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, session in sides.items():
                speeds[name].append(speed(session, options.tokens))
    print(
        f"{options.target.name}, {options.loops} busy processes, {options.rounds} replies of {options.tokens} tokens"
    )
    for name, found in speeds.items():
        print(f"{name:10} {median(found):6.1f} tokens/s   ({min(found):.1f} to {max(found):.1f})")
    best = max(median(found) for name, found in speeds.items() if name != AUTO)
    print(f"automatic / best fixed: {median(speeds[AUTO]) / best:.2f}")


def speed(session: localspec.Session, tokens: int) -> float:
    """Tokens per second of one reply, from the request to its end."""
    vocabulary = session.pair.vocabulary
    no_end = {token: -math.inf for token in range(vocabulary.size) if vocabulary.is_end(token)}
    session.pair.target.rollback(0)
    began = time.perf_counter()
    reply = session.complete(PROMPT, temperature=0, max_tokens=tokens, logit_bias=no_end)
    return len(reply.tokens) / (time.perf_counter() - began)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that only count."""
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.terminate()
            loop.join()


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
