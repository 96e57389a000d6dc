"""Make a faster draft for a pair, as a new pair; the target still decides every token. By default the pair's draft is
trimmed. A trimmed draft proposes only tokens that are frequent or that the target finds likely, which makes a draft
step cheaper. --make builds a draft from the target's first layers and trains it on the target's answers. This draft is
kept if it is faster on unseen prompts. Ctrl-C ends the training and keeps the best draft so far; the same command
resumes.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.options import add_pair_argument, load_options, number
from localspec.display import DrawnLine, print_notice, say, size_text
from localspec.errors import BadSetting, LocalspecError

if TYPE_CHECKING:
    from localspec.fit.making import Judgement
    from localspec.fit.training import Progress
    from localspec.measure.bench import Arm, BenchBlock
    from localspec.models.registry import Pair

TRIMMED, MADE = 16_384, 8_192  # tokens in the output vocabularies of a trimmed and of a trained draft
ANSWER = 96  # limit of tokens in an answer
LAYERS, ANSWERS, VISITS = 4, 200_000, 5_000_000
SECONDS = 180.0  # seconds to measure each of the two drafts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    group = parser.add_argument_group("fitting")
    add = group.add_argument
    kept = f"tokens that the draft can write (default: {TRIMMED:,}; {MADE:,} with --make)"
    add("--trim", type=number(int, 1), metavar="N", help=kept)
    add("--make", action="store_true", help="make a draft from the target's layers and train it")
    layers = f"layers of the draft (default: {LAYERS})"
    add("--layers", type=number(int, 1), default=LAYERS, metavar="N", help=layers)
    answers = f"tokens of the target's answers to train on (default: {ANSWERS:,})"
    add("--answers", type=number(int, 1), default=ANSWERS, metavar="N", help=answers)
    visits = f"tokens to train on, repetitions counted (default: {VISITS:,})"
    add("--visits", type=number(int, 1), default=VISITS, metavar="N", help=visits)
    add("--as", dest="new_name", metavar="NAME", help="name of the new pair")


def run(arguments: argparse.Namespace) -> int:
    from localspec.cli.loading import chosen_pair
    from localspec.fit.making import fitted_name
    from localspec.models.registry import check_name

    files, options = chosen_pair(arguments), load_options(arguments)
    suffix = "made" if arguments.make else f"trim-{arguments.trim or TRIMMED}"
    name = arguments.new_name or fitted_name(files, suffix)
    check_name(name)
    return (make if arguments.make else trim)(arguments, options, files, name)


def trim(arguments: argparse.Namespace, options: dict[str, Any], files: "Pair", name: str) -> int:
    from localspec import api
    from localspec.fit import making
    from localspec.fit.cut import trimmable

    if files.draft is None:
        hint = "name a draft model with --draft FILE, or make one with --make"
        raise BadSetting(f"{files.name} has no draft model to trim", hint=hint)
    count = TRIMMED if arguments.trim is None else arguments.trim
    trimmable(files.draft.here, count)
    path, before = making.fitted_path(name), files.draft.here.stat().st_size
    options |= {"target": files.target.here, "speculate": False}
    with making.alone_in(path.with_suffix("")), DrawnLine(sys.stderr) as line:

        def reported(tokens: int) -> None:
            line.draw(f"the target answers the built-in prompts: {tokens:,} tokens")

        with api.load(**options, is_use=False, on_stage=line.draw) as session:
            found = making.trim_for(session.pair, files.draft.here, path, count, ANSWER, reported)
    making.keep(name, files, path, f"{files.name} with its draft trimmed to {found.output_tokens:,} tokens")
    say(
        f"The draft can write {found.output_tokens:,} of {found.whole:,} tokens. "
        f"Of the target's {found.written:,} tokens on unseen prompts, it can write {found.written_share:.1%}.\n"
        f"Its file has {size_text(path.stat().st_size)} instead of {size_text(before)}. "
        f"The new pair is {name}:\n"
        f"localspec bench {name}"
    )
    return 0


def make(arguments: argparse.Namespace, options: dict[str, Any], files: "Pair", name: str) -> int:
    from localspec import api
    from localspec.cli.loading import stop_on_interrupt
    from localspec.fit import making

    source = files.target.here
    plan = making.TrainingPlan(arguments.layers, arguments.trim or MADE, arguments.answers, arguments.visits)
    making.check_makeable(source, plan)
    from localspec.fit.training import learn  # imported late, because it needs torch

    path, options = making.fitted_path(name), options | {"target": files.target.here}
    folder = path.with_suffix("")
    with making.alone_in(folder), DrawnLine(sys.stderr) as line:

        def collected(tokens: int) -> None:
            line.draw(f"the target answers prompts: {tokens:,} of {plan.answered:,} tokens")

        def learned_so_far(now: "Progress") -> None:
            done = f"{now.visits:,} of {plan.visits:,} tokens, loss {now.loss:.2f}, right {now.right:.1%} of the time"
            line.draw(f"learning: {done}; Ctrl-C stops and keeps the best draft")

        if making.answered(folder) < plan.answered:
            with api.load(**options | {"speculate": False}, is_use=False, on_stage=line.draw) as session:
                making.collect(session.pair, folder, plan.answered, collected)
        with stop_on_interrupt() as stopped:
            learned = learn(source, folder, path, plan, learned_so_far, stopped.is_set)
        line.clear()
        what = "draft and target agree on the likeliest token"
        print_notice(f"in unseen answers, {what} at {learned.right:.1%} of the tokens")
        judged = judge_it(options, str(files.draft.here if files.draft else "lookup"), path, line)
    say(judged.sentence())
    if not judged.kept:
        say("The draft is not faster here, so it was not added as a pair. More --visits may help.")
        say(f"`localspec rm --unused` removes the draft: {path}")
        return 1
    use = f"{files.name} with a draft trained from {plan.layers} layers of {source.name}"
    making.keep(name, files, path, f"{use}: {judged.speedup.middle:.2f}x where it was made")
    say(f"The pair is called {name}:\nlocalspec bench {name}")
    return 0


def judge_it(options: dict[str, Any], old: str, path: Path, line: DrawnLine) -> "Judgement":
    """Measure the old and the new draft on the same unseen prompts, and return the judgement."""
    from localspec import api
    from localspec.cli.loading import stop_on_interrupt
    from localspec.fit.making import judge, unseen_prompts
    from localspec.measure.bench import AUTO, PLAIN, bench

    def reported(block: "BenchBlock", arm: "Arm", seconds: float) -> None:
        line.draw(f"measuring {arm.name}: {block.prompt.name}, {seconds:.0f} of {SECONDS:.0f} s")

    found = []
    for draft in (old, str(path)):
        chosen = options | {"speculate": True, "draft": draft} | {"cache_gb": 0}
        with (
            api.load(**chosen, is_use=False, on_stage=line.draw) as session,
            stop_on_interrupt(session) as stopped,
        ):
            what = session, unseen_prompts(session.pair), (PLAIN, AUTO), (0.0,), 1, SECONDS
            found.append(bench(*what, on_step=reported, stopped=stopped.is_set).measurements)
    if not all(found):
        hint = "run the same command again to measure the draft"
        raise LocalspecError("nothing was measured, so the draft was not added as a pair", hint=hint)
    return judge(*found)
