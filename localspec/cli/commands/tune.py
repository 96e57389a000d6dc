"""`localspec tune`: measure what a pair's passes cost on this machine, for every later run."""

import argparse
import json
import shutil
import sys
from typing import TYPE_CHECKING

from localspec.cli.commands.bench import duration, refuse_missing_folder, write_drawing
from localspec.cli.interrupts import CANCELLED, stop_on_interrupt
from localspec.cli.loading import open_session
from localspec.cli.options import add_pair_argument, add_report_options
from localspec.cli.printing import DrawnLine, say
from localspec.cli.usage import Subparsers

if TYPE_CHECKING:
    from localspec.measure.tune.tune import Curve


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="measure what a pair's passes cost here",
        description="Measure the target by batch width, the draft by step, and what changing the width "
        "costs. Later runs with the same files, devices and threads start from it; without it they learn "
        "the same while they run.",
    )
    add_pair_argument(parser)
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--seconds", type=duration, default=60.0, metavar="S", help="about so long (default: 60)"
    )
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.measure.tune.tune import store, tune
    from localspec.warm_up import ordinary_tokens

    refuse_missing_folder(arguments)
    with open_session(arguments, measures=True) as session, stop_on_interrupt(session) as stopped:
        engine = session.engine
        with DrawnLine(sys.stderr) as line:
            curve = tune(
                engine.target,
                next(iter(engine.drafters), None),
                ordinary_tokens(engine.vocabulary),
                seconds=arguments.seconds,
                steps_back=engine.rollback_limit is None,
                on_round=lambda done, most: line.draw(f"measuring: round {done + 1} of at most {most}"),
                stopped=stopped.is_set,
            )
        if curve and not stopped.is_set():
            store(engine, curve)
    if curve:
        tell(arguments, curve)
    return CANCELLED if stopped.is_set() else 0


def tell(arguments: argparse.Namespace, curve: "Curve") -> None:
    from localspec.measure.tune.report import as_json, chart, report

    write_drawing(arguments, (chart(curve),))
    if arguments.json:
        say(json.dumps(as_json(curve)))
    else:
        say(report(curve, shutil.get_terminal_size().columns))
