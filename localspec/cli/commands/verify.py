"""Test on this machine that drafting does not change the text: greedy texts against plain decoding, sampled replies
against the target's own probabilities. The exit code is 3 if a text differs by more than rounding explains. Ctrl-C
ends it and keeps the findings.
"""

import argparse
import sys

from localspec.cli import CANCELLED
from localspec.cli.loading import names_of, open_session, stop_on_interrupt
from localspec.cli.options import add_pair_argument
from localspec.display import DrawnLine, say, say_json
from localspec.errors import BadSetting

SECONDS = 180.0
DIFFERENT = 3  # 1 is an error, 2 wrong usage
LEAST_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    add = parser.add_argument_group("verification").add_argument
    limit = f"time limit (default: {SECONDS:g})"
    add("--seconds", type=float, default=SECONDS, metavar="S", help=limit)
    add("--temperature", type=float, metavar="T", help="of the sampled texts (default: 0.8); above 0")
    add("--seed", type=int, metavar="N", help="repeat the draws of an earlier run (default: fresh)")
    add("--json", action="store_true", help="print one JSON object instead of the report")


def run(arguments: argparse.Namespace) -> int:
    from localspec.measure.summary import this_machine
    from localspec.measure.verify import TEMPERATURE, VerifyStep, as_json, problems, report, verify

    def tell(step: VerifyStep) -> None:
        began = f"{step.seconds:4.0f} s  {step.phase}"
        line.tell(f"{began} {step.done:4.0%}  {step.detail}", step.phase, began)

    if not arguments.seconds >= LEAST_SECONDS:
        raise BadSetting(f"{arguments.seconds:g} seconds are too few", hint="give 30 or more")
    with open_session(arguments) as session, stop_on_interrupt(session) as stopped:
        with DrawnLine(sys.stderr) as line:
            found = verify(
                session,
                seconds=arguments.seconds,
                temperature=TEMPERATURE if arguments.temperature is None else arguments.temperature,
                seed=arguments.seed,
                on_step=tell,
                stopped=stopped.is_set,
            )
        names = names_of(session)
    if arguments.json:
        say_json({**names, **as_json(found)})
    else:
        machine = this_machine(arguments.threads).sentence()
        say(f"{names['target']} with {names['draft']}; {machine}\n\n{report(found)}")
    if problems(found):
        return DIFFERENT
    return CANCELLED if found.stopped else 0
