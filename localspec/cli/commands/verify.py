"""Test on this machine that drafting does not change the text. The exit code is 3 if drafting changes the text by more
than rounding explains. Ctrl-C ends the test early and prints the results so far.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from localspec.cli import CANCELLED
from localspec.cli.loading import names_of, open_session, stop_on_interrupt
from localspec.cli.options import add_option, add_pair_argument, number
from localspec.display import DrawnLine, say, say_json
from localspec.errors import BadSetting

if TYPE_CHECKING:
    from localspec.measure.bench import BenchPrompt

SECONDS = 180.0
DIFFERENT = 3  # exit code for a changed text; 1 means an error, and 2 wrong usage
LEAST_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    group = parser.add_argument_group("verification")
    add = group.add_argument
    add_option(group, "parallel", help="sampled texts at the same time, as in `localspec serve` (default: 1)")
    limit = f"time limit in seconds (default: {SECONDS:g})"
    add("--seconds", type=number(float, LEAST_SECONDS), default=SECONDS, metavar="S", help=limit)
    sampled = "temperature of the sampled texts, above 0 (default: 0.8)"
    add("--temperature", type=number(float, 0, above=True), metavar="T", help=sampled)
    seed = "seed of an earlier run, to repeat its random numbers (default: a new seed)"
    add("--seed", type=number(int, 0), metavar="N", help=seed)
    add("--json", action="store_true", help="print one JSON object instead of the report")


def run(arguments: argparse.Namespace) -> int:
    from localspec.measure.summary import this_machine
    from localspec.measure.verify import TEMPERATURE, Phase, as_json, problems, report, verify

    def tell(phase: Phase, done: float, prompt: "BenchPrompt", seconds: float) -> None:
        began = f"{seconds:4.0f} s  {phase}"
        line.tell(f"{began} {done:4.0%}  {prompt.category}: {prompt.name}", phase, began)

    if arguments.no_draft:
        raise BadSetting("without drafting there is nothing to verify", hint="leave out --no-draft")
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
        say(f"{report(found)}\n\n{names['target']} with {names['draft'] or 'lookup'}; {machine}")
    if problems(found):
        return DIFFERENT
    return CANCELLED if found.stopped else 0
