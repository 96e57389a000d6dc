"""Two replies together: against one after the other, and against llama.cpp's server with two slots.

    python -m benchmarks.two_replies --cache FOLDER [--server DIR/bin/llama-server] [--rounds 20] [--tokens 64]

The demo pair enlarged to F16, or the models of `--target` and `--draft`, temperature 0, replies of equal length,
prompts included. All sides take turns in every round. The server drafts with the flags that were quickest in a sweep
on other prompts. A ratio is the time of the other side divided by that of together, on the wall and of the processor:
with one thread the latter stays comparable on a busy machine.
"""

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import localspec
from benchmarks.server.prompts import tasks
from benchmarks.server.sides import Ask, Flags, ServerSide
from localspec import demo
from localspec.gguf.enlarging import Shape, enlarge
from localspec.measure.summary import this_machine

TARGET, DRAFT = Shape(1024, 12, 16, 8, 64, 4096, 2560), Shape(512, 6, 8, 4, 64, 2048, 2560)
CONTEXT = 512
SWEPT = [Flags(0), *(Flags(depth, p_min) for depth in (2, 3, 5, 8) for p_min in (0.0, 0.75))]
Side = Callable[[Sequence[Ask]], None]
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


def timed(work: Side, asks: Sequence[Ask], processor: Callable[[], float]) -> Clocks:
    wall, busy = perf_counter(), processor()
    work(asks)
    return perf_counter() - wall, processor() - busy


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Of their median, 95 %, by bootstrap."""
    draws = random.Random(0)
    medians = sorted(median(draws.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True)
    for name in ("server", "target", "draft"):
        parser.add_argument(f"--{name}", type=Path)
    for name, usual in (("rounds", 20), ("tokens", 64), ("threads", 1), ("slots", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    target, draft = (options.target, options.draft) if options.target else files(options.cache)
    slots, log = options.slots, options.cache / "server.log"

    with ExitStack() as opened:
        threads = opened.enter_context(ThreadPoolExecutor(slots))

        def at_once(work: Callable[[int, Ask], object]) -> Side:
            return lambda asks: list(threads.map(work, range(slots), asks)) and None

        def server(flags: Flags) -> tuple[Side, Callable[[], float]]:
            side = opened.enter_context(
                ServerSide(
                    options.server,
                    target,
                    draft,
                    flags,
                    threads=options.threads,
                    context=slots * CONTEXT,
                    log=log,
                    clock="wall",
                    slots=slots,
                )
            )
            return at_once(lambda _, ask: side.complete(ask, ask.count)), side.busy_seconds

        load = {"target": target, "draft": draft, "threads": options.threads, "context_length": CONTEXT}
        one = opened.enter_context(localspec.load(**load, gpu_layers=0))
        first = opened.enter_context(localspec.load(**load, gpu_layers=0, parallel=slots))
        several = [first, *(opened.enter_context(first.another()) for _ in range(slots - 1))]
        words = one.pair.vocabulary
        no_end = {token: -inf for token in range(words.size) if words.is_end(token)}  # equal lengths
        reply = {"max_tokens": options.tokens, "temperature": 0, "logit_bias": no_end}

        def apart(**more: object) -> Side:
            return lambda asks: [one.complete(ask.text, **reply, **more) for ask in asks] and None  # type: ignore[arg-type]

        def together(**more: object) -> Side:
            return at_once(lambda slot, ask: several[slot].complete(ask.text, **reply, **more))  # type: ignore[arg-type]

        asks = [
            Ask(task.text, tuple(words.tokenize(task.text, parse_special=True)), options.tokens, 0.0, 1)
            for task in tasks(1 + options.rounds * slots // 5)
        ]
        sides = {
            "together, drafting": (together(), process_time),
            "apart, drafting": (apart(), process_time),
            "together, plain": (together(speculate=False), process_time),
            "apart, plain": (apart(speculate=False), process_time),
        }
        if options.server:
            flags = best(server, asks[:slots])
            sides[f"server, {flags}"] = server(flags)
            sides["server, plain"] = server(Flags(0))
        clocks = measured(sides, asks, options.rounds, slots)
    print(
        f"{slots} replies of {options.tokens} tokens, {options.rounds} rounds\n\n{this_machine(options.threads)}\n"
    )
    report(clocks)


def best(server: Callable[[Flags], tuple[Side, Callable[[], float]]], asks: Sequence[Ask]) -> Flags:
    """The quickest drafting flags, of three tries each, the sweep once more for the noise."""
    found = dict[Flags, float]()
    for flags in SWEPT[1:]:
        side, _ = server(flags)
        side([replace(ask, count=8) for ask in asks])
        found[flags] = min(timed(side, asks, process_time)[0] for _ in range(3))
        print(f"sweep: {flags}: {found[flags]:.2f} s", flush=True)
    return min(found, key=lambda flags: found[flags])


def measured(
    sides: Mapping[str, tuple[Side, Callable[[], float]]], asks: Sequence[Ask], rounds: int, slots: int
) -> dict[str, list[Clocks]]:
    clocks = dict[str, list[Clocks]]({name: [] for name in sides})
    for turn in range(rounds + 1):
        now = [asks[(turn * slots + i) % len(asks)] for i in range(slots)]
        order = list(sides.items())
        for name, (side, processor) in order[turn % len(order) :] + order[: turn % len(order)]:
            spent = timed(side, now, processor)
            if turn:  # the first is for learning
                clocks[name].append(spent)
    return clocks


def report(clocks: Mapping[str, Sequence[Clocks]]) -> None:
    print("| side | seconds, median | together is faster, wall | processor |\n|---|---|---|---|")
    for name, spent in clocks.items():
        ours = clocks["together, plain" if name == "apart, plain" else "together, drafting"]
        cells = []
        for clock in (0, 1):
            ratios = [other[clock] / own[clock] for other, own in zip(spent, ours, strict=True)]
            low, high = interval(ratios)
            cells.append(f"{median(ratios):.2f} ({low:.2f} to {high:.2f})")
        print(f"| {name} | {median(wall for wall, _ in spent):.2f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
