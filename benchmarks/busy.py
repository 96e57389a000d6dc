"""localspec and llama.cpp's server beside busy processes, in turns: rates without drafting, the first token of `run`.

    python -m benchmarks.busy --server DIR/bin/llama-server MODEL.gguf [--busy 0,1,2] [--rounds 7] [--runs 20]

A busy process is a loop of Python that does nothing else. Rates: the server and localspec have one thread for each
core, and each loads the model once; printed are medians of tokens per second after the first token, and the median of
the ratios of each round. First token: the other process begins half a second before each `localspec run`, so that
nothing is known of it; printed are medians and the worst, and the seconds of the tokens after the first.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import localspec
from benchmarks.server.sides import Ask, Flags, LocalSide, ServerSide
from localspec.api import default_threads
from localspec.measure.summary import this_machine

TEXT = (
    "A lighthouse keeper finds a message in a bottle and decides, after many years, to answer it. The letter comes "
    "from a sailor who had lost his way in the fog, and it asks a single question about the light"
)
AHEAD_SECONDS = 0.5  # from the start of a busy process to the start of `run`
CONTEXT = 1024


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    with ExitStack() as running:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            running.callback(process.wait)
            running.callback(process.kill)
        yield


def rates(options: argparse.Namespace, model: Path) -> None:
    """Print a row for each number of busy processes."""
    with ExitStack() as opened:
        load = {"target": model, "speculate": False, "context_length": CONTEXT}
        session = opened.enter_context(localspec.load(**load))
        fixed = opened.enter_context(localspec.load(**load, threads=default_threads()))
        log = Path(opened.enter_context(TemporaryDirectory())) / "server.log"
        more = {"threads": default_threads(), "context": CONTEXT, "log": log, "clock": "wall"}
        server = ServerSide(options.server, model, model, Flags(0), **more)
        ours = (LocalSide(each, depth=0, clock="wall") for each in (session, fixed))
        sides = [*ours, opened.enter_context(server)]
        tokens = tuple(session.pair.vocabulary.tokenize(TEXT, parse_special=True, add_special=True))
        for count in options.busy:
            with busy_processes(count):
                time.sleep(AHEAD_SECONDS)
                rounds = [
                    turn(sides, Ask(TEXT, tokens, options.tokens, 0.0, number), number)
                    for number in range(-1, options.rounds)  # the first round warms up
                ][1:]
            mine, all_threads, theirs = (median(column) for column in zip(*rounds, strict=True))
            ratio = median(one / other for one, _, other in rounds)
            share = median(other / one for one, other, _ in rounds)
            cells = f"{mine:.1f} | {theirs:.1f} | **{ratio:.2f}** | {all_threads:.1f} ({share:.2f})"
            print(f"| {model.stem} | {count} | {cells} |", flush=True)


def turn(sides: Sequence[LocalSide | ServerSide], ask: Ask, number: int) -> list[float]:
    order = range(len(sides)) if number % 2 else reversed(range(len(sides)))
    found = {place: sides[place](ask).rate for place in order}
    return [found[place] for place in sorted(found)]


@dataclass(frozen=True, slots=True)
class Run:
    first_seconds: float
    decode_seconds: float


def run_once(options: argparse.Namespace, model: Path, busy: int, more: Sequence[str] = ()) -> Run:
    """Run `localspec run` beside busy processes that have just begun."""
    command = [sys.executable, "-m", "localspec", "run", "--target", str(model), "--no-draft", "--json"]
    command += ["--raw", "-n", "24", "--temperature", "0", *more, TEXT]
    with busy_processes(busy):
        time.sleep(AHEAD_SECONDS * bool(busy))
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    stats = json.loads(done.stdout)["stats"]
    return Run(stats["first_token_seconds"], stats["decode_seconds"])


def runs(options: argparse.Namespace, model: Path) -> None:
    """Print a row for each kind of run; all kinds take turns."""
    threads = ("--threads", str(default_threads()))
    kinds = {"quiet": (0, ()), "one busy process": (1, ()), f"the same, {' '.join(threads)}": (1, threads)}
    run_once(options, model, 0)  # the first run loads the file from the disk
    found: dict[str, list[Run]] = {kind: [] for kind in kinds}
    for _ in range(options.runs):
        for kind, (busy, more) in kinds.items():
            found[kind].append(run_once(options, model, busy, more))
    quiet = median(run.first_seconds for run in found["quiet"])
    for kind, some in found.items():
        first, decode = [run.first_seconds for run in some], median(run.decode_seconds for run in some)
        ratios = f"{median(first) / quiet:.1f} | {max(first) / quiet:.1f}"
        print(f"| {model.stem} | {kind} | {median(first):.3f} | {ratios} | {decode:.2f} |", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--server", type=Path, help="see benchmarks/server/build.py; none: no rates")
    parser.add_argument("--busy", type=lambda text: [int(n) for n in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=20, help="of each kind; 0: none")
    return parser.parse_args()


def main() -> None:
    options = parse()
    with TemporaryDirectory() as home:
        os.environ["LOCALSPEC_HOME"] = home
        print(this_machine().sentence())
        if options.server:
            print(
                "\n| model | busy processes | localspec, tokens/s | server | ratio | all threads (of localspec) |"
            )
            print("|---|---|---|---|---|---|")
            for model in options.models:
                rates(options, model)
        if options.runs:
            print("\n| model | beside | first token, s | of quiet | worst | 23 tokens after it, s |")
            print("|---|---|---|---|---|---|")
            for model in options.models:
                runs(options, model)


if __name__ == "__main__":
    main()
