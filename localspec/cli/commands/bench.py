"""`localspec bench`: what speculative decoding brings with this pair on this machine."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from localspec.cli.interrupts import CANCELLED, stop_on_interrupt
from localspec.cli.loading import open_session
from localspec.cli.options import add_pair_argument, add_report_options
from localspec.cli.printing import JSON_VERSION, DrawnLine, note, say, say_json
from localspec.cli.usage import Subparsers
from localspec.errors import BadSetting, ContextFull

if TYPE_CHECKING:
    from localspec.measure.bench import Arm, BenchOutcome, BenchStep, Limits
    from localspec.measure.plot import Chart
    from localspec.measure.prompts import BenchPrompt
    from localspec.measure.summary import Subject, Summary

SECONDS = 300.0  # where neither a time nor a number of runs is given
_BAR = 16  # characters of the progress bar


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure a pair against plain decoding",
        description="Measure a pair against plain decoding: the same prompts by category, in turns, with "
        "intervals and a verdict. What drafting learns meanwhile is used by later runs. Ctrl-C ends it and "
        "keeps what was measured.",
    )
    add_pair_argument(parser)
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--depths", type=depths, default=(), metavar="N,N", help="fixed depths to measure beside auto"
    )
    group.add_argument(
        "--temperature", type=temperatures, default=(0.0, 0.8), metavar="T,T", help="default: 0,0.8"
    )
    group.add_argument(
        "--only", type=names, metavar="WHAT", help="categories: code, chat, prose, json, edit, long"
    )
    group.add_argument(
        "--max-tokens", type=positive, default=128, metavar="N", help="of a reply (default: 128)"
    )
    length = group.add_mutually_exclusive_group()
    length.add_argument("--runs", type=positive, metavar="N", help="rounds over all prompts")
    length.add_argument(
        "--seconds", type=duration, metavar="S", help=f"stop after so long (default: {SECONDS:g})"
    )
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.measure.bench import bench
    from localspec.measure.statistics import CROWDED
    from localspec.measure.summary import Subject, summarise

    refuse_missing_folder(arguments)
    prompts, began = chosen_prompts(arguments), perf_counter()
    with open_session(arguments, measures=True) as session, stop_on_interrupt(session) as stopped:
        drafter = session.draft_name or ("lookup" if arguments.draft == "lookup" else "")
        if not drafter:
            raise BadSetting(
                f"{session.name} has nothing to draft with",
                hint="add --draft FILE or --draft lookup, or name a pair",
            )
        subject = Subject(
            session.name,
            session.target_name,
            drafter,
            perf_counter() - began,
            arguments.max_tokens,
        )
        blocks = len(prompts) * len(arguments.temperature)
        crowded = False

        def on_step(step: "BenchStep") -> None:
            nonlocal crowded
            crowded |= session.engine.drafting.crowded
            line.tell(progress_text(step, blocks, limits(arguments)), step.blocks_done)

        with DrawnLine(sys.stderr) as line:
            outcome = bench(
                session,
                prompts,
                arms(arguments),
                arguments.temperature,
                limits(arguments),
                on_step=on_step,
                stopped=stopped.is_set,
            )
    summary = summarise(outcome.measurements)
    tell(arguments, subject, outcome, summary)
    if crowded:
        say(CROWDED, to=sys.stderr)
    return CANCELLED if outcome.stopped else 0


def tell(
    arguments: argparse.Namespace, subject: "Subject", outcome: "BenchOutcome", summary: "Summary"
) -> None:
    """Print the report or the JSON, draw the files, keep the record."""
    from localspec.measure.machine import this_machine
    from localspec.measure.summary import chart, keep, record, report

    if not summary.rows:
        say_why_nothing(outcome, summary)
        return
    machine = this_machine(arguments.threads)
    recorded = {"version": JSON_VERSION, **record(subject, machine, outcome, summary)}
    write_drawing(arguments, [chart(summary, temperature) for temperature in summary.temperatures])
    if not outcome.stopped:
        try:
            keep(subject.pair, recorded)
        except OSError as error:
            note(f"the record was not kept: {error}")
    if arguments.json:
        say_json(recorded)
        return
    say(f"{subject.target} with {subject.draft}, loaded in {subject.load_seconds:.1f} s")
    say(f"{machine.sentence()}\n")
    say(report(summary, shutil.get_terminal_size().columns))
    if outcome.too_long:
        say(f"No room in the context for: {', '.join(outcome.too_long)}.")
    if outcome.stopped:
        say("Stopped early: the intervals are as wide as that makes them.")


def say_why_nothing(outcome: "BenchOutcome", summary: "Summary") -> None:
    """Without a single pair of replies there is no report; unless the user stopped, that is an error."""
    if summary.too_short:
        raise BadSetting("every reply was too short to time", hint="allow longer ones: --max-tokens 128")
    if outcome.too_long:
        raise ContextFull(
            "no prompt fits into the context", hint="load the pair with a larger one: --context"
        )
    say("Stopped before a prompt was finished with every depth.", to=sys.stderr)


def write_drawing(arguments: argparse.Namespace, charts: "Sequence[Chart]") -> None:
    """Draw the charts into the file that --svg names."""
    from localspec.measure.plot import svg

    if arguments.svg:
        try:
            arguments.svg.write_text(svg(*charts), encoding="utf-8")
        except OSError as error:
            note(f"{error.filename} was not written: {error.strerror}")


def refuse_missing_folder(arguments: argparse.Namespace) -> None:
    """Raises BadSetting if the folder of the SVG file does not exist, before anything is measured."""
    if arguments.svg and not (folder := arguments.svg.absolute().parent).is_dir():
        raise BadSetting(f"there is no folder {folder}", hint="make it, or name another file")


def chosen_prompts(arguments: argparse.Namespace) -> "tuple[BenchPrompt, ...]":
    from localspec.measure.prompts import Category, built_in_prompts

    wanted = arguments.only or tuple(Category)
    if unknown := set(wanted) - set(Category):
        raise BadSetting(f"no category called {min(unknown)!r}", hint=f"there are: {', '.join(Category)}")
    return tuple(prompt for prompt in built_in_prompts() if prompt.category in wanted)


def arms(arguments: argparse.Namespace) -> "tuple[Arm, ...]":
    from localspec.measure.bench import AUTO, PLAIN, fixed

    return (PLAIN, AUTO, *(fixed(depth) for depth in arguments.depths))


def limits(arguments: argparse.Namespace) -> "Limits":
    from localspec.measure.bench import Limits

    seconds = arguments.seconds if arguments.seconds or arguments.runs else SECONDS
    return Limits(rounds=arguments.runs, seconds=seconds, max_tokens=arguments.max_tokens)


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def depths(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(part) for part in text.split(",")))


def temperatures(text: str) -> tuple[float, ...]:
    return tuple(dict.fromkeys(float(part) for part in text.split(",")))


def duration(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a time above 0")
    return value


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def progress_text(step: "BenchStep", blocks_in_round: int, limits: "Limits") -> str:
    """How far by the limit that is nearer, what runs now, and the speed of the reply before it."""
    shares = [step.seconds / limits.seconds] if limits.seconds else []
    shares += [step.blocks_done / (blocks_in_round * limits.rounds)] if limits.rounds else []
    done = min(max(shares, default=0.0), 1.0)
    filled = int(done * _BAR)
    minutes, seconds = divmod(int(step.seconds), 60)
    line = (
        f"{'█' * filled}{'░' * (_BAR - filled)} {done:4.0%}  {minutes}:{seconds:02d}  "
        f"{step.block.prompt.category}: {step.block.prompt.name}, "
        f"T={step.block.temperature:g}, {step.arm.name}"
    )
    if step.last:
        line += f"  (before: {step.last.arm} {step.last.tokens_per_second:.1f} tokens/s)"
    return line
