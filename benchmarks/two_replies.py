"""Two replies together against the same two one after the other, on the demo pair enlarged to F16.

    python -m benchmarks.two_replies --cache FOLDER [--rounds 20] [--tokens 48] [--threads 1] [--lanes 2]

Both ways take turns in one process, plain and with drafting. The ratio is the time of one after the other divided by
that of together, on the wall and of the processor: with one thread the latter stays comparable on a busy machine.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import localspec
from localspec import demo
from localspec.gguf.enlarging import Shape, enlarge

TARGET, DRAFT = Shape(1024, 12, 16, 8, 64, 4096, 2560), Shape(512, 6, 8, 4, 64, 2048, 2560)
PROMPTS = (
    "Why is speculative decoding faster?",
    "Write a Python function that adds two numbers.",
    "What is the capital of France?",
    "Tell me a story.",
)
Clocks = tuple[float, float]  # wall and processor, seconds


def files(folder: Path) -> tuple[Path, Path]:
    """The enlarged pair, made at first use."""
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "target-f16.gguf", folder / "draft-f16.gguf"
    for path, source, shape in zip(
        found, (demo.target_path(), demo.draft_path()), (TARGET, DRAFT), strict=True
    ):
        if not path.exists():
            enlarge(source, path, shape)
    return found


def timed(work: Callable[[], object]) -> Clocks:
    wall, processor = perf_counter(), process_time()
    work()
    return perf_counter() - wall, process_time() - processor


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Of their median, 95 %, by bootstrap."""
    draws = random.Random(0)
    medians = sorted(median(draws.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    for name, usual in (("rounds", 20), ("tokens", 48), ("threads", 1), ("lanes", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    target, draft = files(options.cache)
    lanes, found = options.lanes, dict[str, list[tuple[Clocks, Clocks]]]()
    with ExitStack() as opened:
        load = {"target": target, "draft": draft, "threads": options.threads, "context_length": 512}
        one = opened.enter_context(localspec.load(**load, gpu_layers=0))
        first = opened.enter_context(localspec.load(**load, gpu_layers=0, parallel=lanes))
        several = [first, *(opened.enter_context(first.another()) for _ in range(lanes - 1))]
        threads = opened.enter_context(ThreadPoolExecutor(lanes))
        words = one.pair.vocabulary
        banned = {token: -inf for token in range(words.size) if words.is_end(token)}  # equal lengths
        for turn in range(options.rounds + 1):
            questions = [[{"role": "user", "content": PROMPTS[(turn + i) % 4]}] for i in range(lanes)]
            for arm, drafting in (("plain", {"speculate": False}), ("drafting", {})):
                reply = {"max_tokens": options.tokens, "temperature": 0, "logit_bias": banned, **drafting}

                def apart(reply: dict = reply, questions: list = questions) -> None:  # type: ignore[type-arg]
                    for question in questions:
                        one.run(question, **reply)

                def together(reply: dict = reply, questions: list = questions) -> None:  # type: ignore[type-arg]
                    jobs = [
                        threads.submit(s.run, q, **reply) for s, q in zip(several, questions, strict=True)
                    ]
                    for job in jobs:
                        job.result()

                ways = (apart, together) if turn % 2 else (together, apart)
                clocks = {way: timed(way) for way in ways}
                if turn:  # the first is for learning
                    found.setdefault(arm, []).append((clocks[apart], clocks[together]))
    print(f"{lanes} replies of {options.tokens} tokens, {options.threads} threads, {options.rounds} rounds")
    for arm, pairs in found.items():
        for clock, name in enumerate(("wall", "processor")):
            ratios = [apart[clock] / together[clock] for apart, together in pairs]
            low, high = interval(ratios)
            print(f"{arm}, {name}: {median(ratios):.3f} times as fast together ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
