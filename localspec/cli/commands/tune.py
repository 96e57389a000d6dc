"""Measure how long the target takes for batches of each width, and the draft for each token. Later runs with the same
files, devices and threads start from the result; without it they learn the same while they run.
"""

import argparse
import sys

from localspec.cli import CANCELLED
from localspec.cli.loading import names_of, open_session, stop_on_interrupt
from localspec.cli.options import add_pair_argument, number
from localspec.display import DrawnLine, say, say_json
from localspec.errors import BadSetting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    group, limit = parser.add_argument_group("measurement"), "measure for about S seconds (default: 60)"
    group.add_argument("--seconds", type=number(float, 0, above=True), default=60.0, metavar="S", help=limit)
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the report")


def run(arguments: argparse.Namespace) -> int:
    from localspec.measure.tune import as_json, report, tune
    from localspec.models.drafting import Drafting, ordinary_tokens

    with open_session(arguments) as session, stop_on_interrupt(session) as stopped:
        pair, names = session.pair, names_of(session)
        with DrawnLine(sys.stderr) as line:
            line.draw(f"measuring for up to {arguments.seconds:g} s")
            text, steps_back = ordinary_tokens(pair.vocabulary), pair.rollback_limit is None
            watch = {"seconds": arguments.seconds, "steps_back": steps_back, "stopped": stopped.is_set}
            curve = tune(pair.target, pair.drafters, text, **watch)
        if curve and isinstance(pair.drafting, Drafting):
            pair.drafting.calibrated(curve.table)
    if stopped.is_set():
        return CANCELLED
    if curve is None:
        what = f"{arguments.seconds:g} seconds are too few for this pair"
        raise BadSetting(what, hint="give more: --seconds 120")
    if arguments.json:
        say_json({**names, **as_json(curve)})
    else:
        say(report(curve))
    return 0
