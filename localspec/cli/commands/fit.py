"""Make a faster draft for a pair; the result is a new pair, and the target still decides every token. Without
--make and --teach the pair's draft is trimmed. It can then write only frequent tokens and those that the target
finds likely, so each step is cheaper. --make builds a draft of the target's first layers, which learns from the
target's answers. It is kept if it is faster on unseen prompts. --teach does the same with a copy of the pair's
draft. Ctrl-C ends the learning and keeps the best so far; the same command resumes.
"""

import argparse
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from localspec.cli.options import add_pair_argument, number
from localspec.display import DrawnLine, note, say, size_text
from localspec.errors import BadSetting, LocalspecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from localspec.fit.judging import Judgement
    from localspec.fit.learning import Progress
    from localspec.measure.bench import BenchStep
    from localspec.models.registry import Pair

TRIMMED, MADE = 16_384, 8_192  # tokens that drafts can still say
ANSWER = 96  # tokens
LAYERS, ANSWERS, VISITS = 4, 200_000, 5_000_000
SECONDS = 180.0  # of measuring, for the new draft and for what was there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    group = parser.add_argument_group("fitting")
    add = group.add_argument
    kept = (
        f"tokens that the draft can still write (default: {TRIMMED:,}, or {MADE:,} with --make and --teach)"
    )
    add("--trim", type=number(int, 1), metavar="N", help=kept)
    way = group.add_mutually_exclusive_group()
    way.add_argument("--make", action="store_true", help="make a draft of the target's layers, and teach it")
    way.add_argument("--teach", action="store_true", help="teach a copy of the pair's own draft")
    layers = f"layers of the draft (default: {LAYERS}, with --teach all)"
    add("--layers", type=number(int, 1), metavar="N", help=layers)
    answers = f"tokens of the target's answers (default: {ANSWERS:,})"
    add("--answers", type=number(int, 1), default=ANSWERS, metavar="N", help=answers)
    visits = f"tokens to learn from, repetitions counted (default: {VISITS:,})"
    add("--visits", type=number(int, 1), default=VISITS, metavar="N", help=visits)
    add("--as", dest="new_name", metavar="NAME", help="name of the new pair")


def run(arguments: argparse.Namespace) -> int:
    from localspec.cli.loading import wanted
    from localspec.fit.trim import fitted_name
    from localspec.models.names import find
    from localspec.models.registry import check_name

    options = wanted(arguments)
    files = find(*(options.pop(name, None) for name in ("pair", "target", "draft")))
    trimmed = f"trim-{arguments.trim or TRIMMED}"
    suffix = "made" if arguments.make else "taught" if arguments.teach else trimmed
    name = arguments.new_name or fitted_name(files, suffix)
    check_name(name)
    return (trim if suffix == trimmed else teach)(arguments, options, files, name)


def trim(arguments: argparse.Namespace, options: dict[str, Any], files: "Pair", name: str) -> int:
    from localspec import api
    from localspec.fit.making import alone_in
    from localspec.fit.trim import fitted_path, keep, trim_for, trimmable

    if files.draft is None:
        hint = "name one: --draft FILE, or make one: --make"
        raise BadSetting(f"{files.name} has no draft model to trim", hint=hint)
    count = TRIMMED if arguments.trim is None else arguments.trim
    trimmable(files.draft.here, count)
    path, before = fitted_path(name), files.draft.here.stat().st_size
    options |= {"target": files.target.here, "speculate": False}
    with alone_in(path.with_suffix("")), DrawnLine(sys.stderr) as line:

        def told(tokens: int) -> None:
            line.draw(f"the target answers the built-in prompts: {tokens:,} tokens")

        with api.load(**options, on_stage=line.draw) as session:
            found = trim_for(session.pair, files.draft.here, path, count, ANSWER, told)
    keep(name, files, path, f"{files.name} with its draft trimmed to {found.output_tokens:,} tokens")
    say(
        f"The draft reads all {found.whole:,} tokens and can write {found.output_tokens:,} of them: on unseen prompts "
        f"{found.said:.1%} of the {found.written:,} tokens that the target wrote.\n"
        f"It decodes {size_text(path.stat().st_size)} instead of {size_text(before)}; the pair is called {name}:\n"
        f"localspec bench {name}"
    )
    return 0


def teach(arguments: argparse.Namespace, options: dict[str, Any], files: "Pair", name: str) -> int:
    from localspec import api
    from localspec.cli.loading import stop_on_interrupt
    from localspec.fit.making import Plan, alone_in, answered, collect, require_cuttable, require_torch
    from localspec.fit.trim import fitted_path, keep
    from localspec.models.places import ModelFile

    source, layers = files.target.here, arguments.layers
    if arguments.teach:
        source = draft_of(files)
        layers = layers or ModelFile.at(source).header.of_model("block_count")
    output_tokens = MADE if arguments.trim is None else arguments.trim
    plan = Plan(LAYERS if layers is None else layers, output_tokens, arguments.answers, arguments.visits)
    require_torch()
    require_cuttable(source, plan)
    from localspec.fit.learning import learn  # needs torch

    path, options = fitted_path(name), options | {"target": files.target.here}
    folder = path.with_suffix("")
    with alone_in(folder), DrawnLine(sys.stderr) as line:

        def collected(tokens: int) -> None:
            line.draw(f"the target answers prompts: {tokens:,} of {plan.answered:,} tokens")

        if answered(folder) < plan.answered:
            with api.load(**options | {"speculate": False}, on_stage=line.draw) as session:
                collect(session.pair, folder, plan.answered, collected)
        line.clear()
        told = progress_on(line, plan.visits)
        with stop_on_interrupt() as stopped:
            learned = learn(source, files.target.name, folder, path, plan, told, stopped.is_set)
        line.clear()
        note(
            f"on answers held out of learning, its first choice is the target's for {learned.right:.1%} of the tokens"
        )
        judged = judge_it(options, str(files.draft.here if files.draft else "lookup"), path, line)
    say(judged.sentence())
    if not judged.kept:
        say("Not faster here, so it became no pair. More --visits teach it more.")
        say(f"`localspec rm --unused` removes the draft: {path}")
        return 1
    speedup = f"{judged.speedup.middle:.2f}x where it was made"
    keep(
        name, files, path, f"{files.name} with {plan.layers} layers of {source.name} that learned: {speedup}"
    )
    say(f"The pair is called {name}:\nlocalspec bench {name}")
    return 0


def draft_of(files: "Pair") -> Path:
    """The draft to teach. Raises BadSetting without a draft of the target's vocabulary."""
    hint = "make one of the target's layers: --make"
    if files.draft is None:
        raise BadSetting(f"{files.name} has no draft to teach", hint=hint)
    if files.check() is not None:
        what = f"{files.draft.name} and its target have different vocabularies, so it cannot learn the target's answers"
        raise BadSetting(what, hint=hint)
    return files.draft.here


def progress_on(line: DrawnLine, visits: int) -> "Callable[[Progress], None]":
    """Shows how far learning is."""
    began: list[tuple[float, int]] = []

    def told(now: "Progress") -> None:
        began.append((monotonic(), now.visits)) if not began else None
        done, seconds = now.visits - began[0][1], monotonic() - began[0][0]
        left = f", {seconds / done * max(visits - now.visits, 0) / 60:.0f} min left" if done else ""
        line.draw(
            f"learning: {now.visits:,} of {visits:,} tokens, loss {now.loss:.2f}, "
            f"right {now.right:.1%} of the time{left}; Ctrl-C keeps the best"
        )

    return told


def judge_it(options: dict[str, Any], old: str, path: Path, line: DrawnLine) -> "Judgement":
    """Plain decoding against the old draft and the new one, on the same unseen prompts."""
    from localspec import api
    from localspec.cli.loading import stop_on_interrupt
    from localspec.fit.judging import judge, unseen_prompts
    from localspec.measure.bench import AUTO, PLAIN, Limits, bench

    def told(step: "BenchStep") -> None:
        done = f"{step.seconds:.0f} of {SECONDS:.0f} s"
        line.draw(f"measuring {step.arm.name}: {step.block.prompt.name}, {done}")

    limits, found = Limits(rounds=1, seconds=SECONDS), []
    for draft in (old, str(path)):
        chosen = options | {"speculate": True, "draft": draft} | {"cache_gb": 0}
        with api.load(**chosen, on_stage=line.draw) as session, stop_on_interrupt(session) as stopped:
            prompts, arms, ended = unseen_prompts(session.pair), (PLAIN, AUTO), stopped.is_set
            outcome = bench(session, prompts, arms, (0.0,), limits, on_step=told, stopped=ended)
            found.append(outcome.measurements)
    if not all(found):
        hint = "the same command measures it again"
        raise LocalspecError("nothing was measured, so the draft became no pair", hint=hint)
    return judge(*found)
