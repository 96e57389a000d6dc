"""localspec against llama.cpp's server on the same files, prompts and tokens, in turns; prints Markdown.

    python -m benchmarks.server.compare --server DIR/bin/llama-server --cache DIR [--types f16,q8_0,q4_0]

First the server's flags are swept, in both orders, on prompts of their own; then its best flags, its plain
decoding and localspec take turns. Both sides generate the same number of tokens and may not end before; both
leave the prompt out. Nothing is tuned for localspec: it drafts with --depth auto.
"""

import argparse
import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter

import localspec
from benchmarks.server.models import Files, enlarged
from benchmarks.server.prompts import CATEGORIES, Task, tasks
from benchmarks.server.sides import Answer, Ask, Flags, LocalSide, ServerSide
from localspec.measure.summary import Interval, mean_ratio, this_machine

CONTEXT = 2048
SWEEP_SEED, SEED = 5, 11
OURS, DRAFTING, PLAIN = "localspec", "llama-server, best drafting flags", "llama-server, plain"

Side = Callable[[Ask], Answer]
Server = Callable[[Flags], ServerSide]


@dataclass(frozen=True, slots=True)
class Result:
    """One answer in the comparison."""

    side: str
    temperature: float
    task: Task
    round: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Compared:
    """A pair of files at all temperatures."""

    files: Files
    best: Mapping[float, Flags]
    swept: Mapping[float, Mapping[Flags, float]]  # tokens per second, by temperature
    results: tuple[Result, ...]
    seconds: float


def main() -> None:
    options = parse()
    with (
        TemporaryDirectory() as fresh
    ):  # what an earlier run learned, on a busy machine perhaps, counts for nothing
        os.environ["LOCALSPEC_HOME"] = str(options.home or fresh)
        print(f"{this_machine(options.threads).sentence()}{'; ' + options.note if options.note else ''}\n")
        for kind in options.types.split(","):
            files = enlarged(options.cache, kind, *options.shapes.split(","))
            print(markdown(compare(files, options)), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="see benchmarks/server/build.py")
    parser.add_argument("--cache", type=Path, required=True, help="for the enlarged models, gigabytes")
    parser.add_argument("--home", type=Path, help="LOCALSPEC_HOME of the run; a new, empty one without")
    parser.add_argument("--types", default="f16,q8_0,q4_0")
    parser.add_argument("--shapes", default="1b,0.1b", help="of target and draft, as in tools/enlarge.py")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu counts processor time: with --threads 1 it means something on a busy machine",
    )
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--depths", default="1,2,3,4,6,8", help="the server's, to sweep")
    parser.add_argument("--p-min", default="0.3,0.6,0.8", help="swept at the best depths and the deepest")
    parser.add_argument("--sweep-tasks", type=int, default=1, help="prompts of each category in the sweep")
    parser.add_argument("--sweep-tokens", type=int, default=48, help="of an answer in the sweep")
    parser.add_argument("--tasks", type=int, default=4, help="prompts of each category in the comparison")
    parser.add_argument("--rounds", type=int, default=2, help="over all prompts, each in another order")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--best", help="skip the sweep: depth:p_min for each temperature, as in 4:0,3:0.6")
    parser.add_argument("--note", default="", help="printed with the machine, for example how busy it was")
    return parser.parse_args()


def compare(files: Files, options: argparse.Namespace) -> Compared:
    """Sweep, then alternate."""
    began = perf_counter()
    temperatures = [float(t) for t in options.temperatures.split(",")]
    with ExitStack() as opened:
        session = opened.enter_context(
            localspec.load(
                target=files.target, draft=files.draft, context_length=CONTEXT, threads=options.threads
            )
        )
        threads = options.threads or this_machine().threads

        def server(flags: Flags) -> ServerSide:
            log = options.cache / "server.log"
            return ServerSide(
                options.server,
                files.target,
                files.draft,
                flags,
                threads=threads,
                context=CONTEXT,
                log=log,
                clock=options.clock,
            )

        everything = tasks(options.tasks + options.sweep_tasks)
        fresh = len(everything) * options.tasks // (options.tasks + options.sweep_tasks)
        ours = LocalSide(session, depth=None, clock=options.clock)

        def ask(task: Task, temperature: float, seed: int, most: int = options.max_tokens) -> Ask:
            return asked(session, task, temperature, seed, most)

        warm_ups = {
            t: [ask(task, t, SWEEP_SEED, options.sweep_tokens) for task in everything[fresh:]]
            for t in temperatures
        }
        for asks in warm_ups.values():
            for one in asks:
                ours(one)
        swept: dict[float, dict[Flags, float]] = {}
        if options.best:
            best = dict(zip(temperatures, map(flags_from, options.best.split(",")), strict=True))
        else:
            swept = {t: {} for t in temperatures}
            best = sweep(server, warm_ups, options, swept)
        servers = {flags: opened.enter_context(server(flags)) for flags in {*best.values(), Flags(0)}}
        results = alternate(ours, servers, best, everything[:fresh], options.rounds, ask)
    return Compared(files, best, swept, tuple(results), perf_counter() - began)


def flags_from(text: str) -> Flags:
    depth, p_min = text.split(":")
    return Flags(int(depth), float(p_min))


def asked(session: localspec.Session, task: Task, temperature: float, seed: int, most: int) -> Ask:
    vocabulary = session.pair.vocabulary
    tokens = vocabulary.tokenize(task.text, parse_special=True, add_special=True)
    count = min(len(vocabulary.tokenize(task.answer, parse_special=False)), most)
    return Ask(task.text, tuple(tokens), count, temperature, seed)


def sweep(
    server: Server,
    asks: Mapping[float, Sequence[Ask]],
    options: argparse.Namespace,
    swept: dict[float, dict[Flags, float]],
) -> dict[float, Flags]:
    """The flags with the highest rate at each temperature: depths first, then p_min where it may matter."""
    depths = [int(d) for d in options.depths.split(",")]
    try_flags(server, asks, [Flags(d) for d in depths], swept)
    good = {flags.depth for found in swept.values() for flags in sorted(found, key=found.__getitem__)[-2:]}
    p_mins = [float(p) for p in options.p_min.split(",")]
    try_flags(server, asks, [Flags(d, p) for d in sorted(good | {max(depths)}) for p in p_mins], swept)
    return {t: max(found, key=found.__getitem__) for t, found in swept.items()}


def try_flags(
    server: Server,
    asks: Mapping[float, Sequence[Ask]],
    candidates: Sequence[Flags],
    swept: dict[float, dict[Flags, float]],
) -> None:
    """Every candidate twice, the second time in the reverse order; geometric means go into `swept`."""
    logs = defaultdict[tuple[float, Flags], list[float]](list)
    for flags in (*candidates, *reversed(candidates)):
        with server(flags) as side:
            for temperature, some in asks.items():
                found = [math.log(side(ask).rate) for ask in some]
                logs[temperature, flags] += found
                rate = math.exp(mean(found))
                print(f"sweep: {flags} at T={temperature:g}: {rate:.1f}", file=sys.stderr, flush=True)
    for (temperature, flags), found in logs.items():
        swept[temperature][flags] = math.exp(mean(found))


def alternate(
    ours: Side,
    servers: Mapping[Flags, Side],
    best: Mapping[float, Flags],
    chosen: Sequence[Task],
    rounds: int,
    ask: Callable[[Task, float, int], Ask],
) -> list[Result]:
    """Every prompt on every side, one after the other; the order turns around from one to the next."""
    results = list[Result]()
    for number in range(rounds):
        for place, task in enumerate(chosen):
            for nth, (temperature, flags) in enumerate(best.items()):
                sides = [(OURS, ours), (DRAFTING, servers[flags]), (PLAIN, servers[Flags(0)])]
                turn = place // len(CATEGORIES) + place + nth + number  # the categories take turns
                sides = sides[turn // 2 % 3 :] + sides[: turn // 2 % 3]
                for name, side in sides if turn % 2 else reversed(sides):
                    answer = side(ask(task, temperature, SEED + number))
                    results.append(Result(name, temperature, task, number, answer))
            print(f"round {number + 1}: {task.name}", file=sys.stderr, flush=True)
    return results


def markdown(compared: Compared) -> str:
    """The table of a pair of files, with the ratios and their intervals."""
    lines = [f"### {compared.files.name}\n"]
    for temperature, flags in compared.best.items():
        found = [r for r in compared.results if r.temperature == temperature]
        drafting = [r for r in found if r.side == DRAFTING]
        plain = [r for r in found if r.side == PLAIN]
        better = drafting if middle_rate(drafting) > middle_rate(plain) else plain
        lines += [
            f"T={temperature:g}, the server's best flags: `{flags}`. localspec is",
            f"{ratio_text(ratio(found, DRAFTING))} as fast as the server drafting, "
            f"{ratio_text(ratio(found, PLAIN))} as fast as the server plain"
            + (" (its better one here)." if better is plain else "."),
            "",
            "| | tokens/s, median | least | accepted | by category |",
            "|---|---|---|---|---|",
            *(side_line([r for r in found if r.side == side], side) for side in (OURS, DRAFTING, PLAIN)),
            "",
        ]
        if temperature == 0:
            lines += [f"Same text as the server's plain decoding: {same_texts(found)}.", ""]
        if swept := compared.swept.get(temperature):
            ordered = sorted(swept.items(), key=lambda item: -item[1])
            listed = ", ".join(f"{f.depth}/{f.p_min:g}: {rate:.1f}" for f, rate in ordered)
            lines += [f"Sweep, n-max/p-min: tokens/s. {listed}.", ""]
    count = len(compared.results)
    return "\n".join(
        [*lines, f"{count} answers; {compared.seconds / 60:.1f} minutes with loading and sweep.\n"]
    )


def same_texts(results: Sequence[Result]) -> str:
    """How often localspec wrote what the server wrote without drafting; near-ties may differ."""
    texts = {(r.side, r.task, r.round): r.answer.text for r in results}
    pairs = [
        (text, texts[PLAIN, task, number]) for (side, task, number), text in texts.items() if side == OURS
    ]
    return f"{sum(ours == theirs for ours, theirs in pairs)} of {len(pairs)}"


def side_line(results: Sequence[Result], side: str) -> str:
    drafted = sum(r.answer.drafted for r in results)
    accepted = f"{sum(r.answer.accepted for r in results) / drafted:.0%}" if drafted else "-"
    categories = dict.fromkeys(r.task.category for r in results)
    parts = (f"{c} {middle_rate([r for r in results if r.task.category == c]):.1f}" for c in categories)
    least = min(results, key=lambda result: result.answer.rate)
    slowest = f"{least.answer.rate:.1f} ({least.task.name})"
    return f"| {side} | {middle_rate(results):.1f} | {slowest} | {accepted} | {', '.join(parts)} |"


def middle_rate(results: Sequence[Result]) -> float:
    return median(r.answer.rate for r in results)


def ratio(results: Sequence[Result], other: str) -> Interval:
    """localspec's rate / the other side's, paired by prompt and round, categories with the same weight."""
    rates = {(r.side, r.task, r.round): r.answer.rate for r in results}
    groups = defaultdict[str, dict[Task, list[float]]](dict)
    for (side, task, number), rate in rates.items():
        if side == OURS:
            logs = groups[task.category].setdefault(task, [])
            logs.append(math.log(rate / rates[other, task, number]))
    return mean_ratio([list(group.values()) for group in groups.values()])


def ratio_text(interval: Interval) -> str:
    text = f"**{interval.middle:.2f}x**"
    return f"{text} ({interval.low:.2f} to {interval.high:.2f})" if interval.known else text


if __name__ == "__main__":
    main()
