"""Measure how much faster a pair is than its target alone. Without a prompt, six kinds of built-in prompts are measured
at temperatures 0 and 0.8, and each speed-up has an interval. With a prompt, the two replies to it are also compared.
Later replies of the pair use the measured costs and acceptance. Ctrl-C stops, and prints the results so far.
"""

import argparse
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

from localspec.chat.loaded_pair import DEMO_MODEL
from localspec.cli import CANCELLED
from localspec.cli.commands.run import as_json as reply_as_json
from localspec.cli.loading import chosen_pair, names_of, open_session, stop_on_interrupt
from localspec.cli.options import (
    add_pair_options,
    add_quiet_option,
    add_reply_options,
    given_of,
    list_of,
    number,
    reply_options,
)
from localspec.cli.prompt import add_prompt_argument, prompt_of, take_pair
from localspec.display import DrawnLine, counted, obeys_sequences, print_notice, say, say_json
from localspec.errors import BadSetting, ContextFull, LocalspecError
from localspec.events import Cycle, Notice
from localspec.options import MOST_DEPTH, REPLY, ReplyOptions, configured

if TYPE_CHECKING:
    from localspec.chat.session import Session
    from localspec.measure.bench import BenchBlock, BenchPrompt
    from localspec.measure.compare import Comparison
    from localspec.measure.race import Race

SECONDS = 300.0  # time limit without --seconds and --runs
DEMO_TABLE = f"{DEMO_MODEL} Its drafts save no time, so auto drafts little."
TEMPERATURES, TOKENS = (0.0, 0.8), 128  # defaults; a prompt of the user is answered at temperature 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_argument(parser, optional=True)
    add_pair_options(parser)
    limit = f"end the reply after N tokens (default: {TOKENS})"
    tokens = {"help": limit, "type": number(int, 1)}
    add_reply_options(parser, temperature={"type": list_of(number(float, 0))}, max_tokens=tokens)
    group = parser.add_argument_group("built-in prompts")
    fixed = "fixed draft depths to measure beside the automatic one"
    group.add_argument("--depths", type=list_of(number(int, 1, MOST_DEPTH)), metavar="N,N", help=fixed)
    kinds = "kinds of prompts to measure: code, chat, prose, json, edit, long, call"
    group.add_argument("--only", type=list_of(str), metavar="WHAT", help=kinds)
    what = "measure attention on the CPU for later loads, in place of the prompts; see `info`"
    group.add_argument("--attention", action="store_true", help=what)
    add = group.add_mutually_exclusive_group().add_argument
    add("--runs", type=number(int, 1), metavar="N", help="number of rounds over the prompts")
    limit = f"time limit in seconds (default: {SECONDS:g})"
    add("--seconds", type=number(float, 0, above=True), metavar="S", help=limit)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the report")
    add_quiet_option(group)


def run(arguments: argparse.Namespace) -> int:
    take_pair(arguments, prompt_optional=True)
    if arguments.attention:
        return measure_attention(arguments)
    if arguments.no_draft or arguments.depth == 0:
        hint = "leave out --no-draft and --depth 0"
        raise BadSetting("without drafting there is nothing to compare", hint=hint)
    return (bench_prompt if arguments.words or arguments.file else bench_built_in)(arguments)


def measure_attention(arguments: argparse.Namespace) -> int:
    """Measure both kinds of attention, and store the times for later loads."""
    from localspec.loading.attention import attention_of, has_choice

    target = chosen_pair(arguments).target
    if not has_choice(target.header):
        what = f"{target.file} has no choice of attention to measure: it is small, or has no attention"
        raise LocalspecError(what, hint="run `localspec bench` without --attention")
    with DrawnLine(sys.stderr) as line:
        threads = configured(threads=arguments.threads).get("threads")
        found = attention_of(target.here, target.header, threads, line.draw)
    if found is None:
        hint = "run it again when no other program uses the processor"
        raise LocalspecError("attention could not be measured", hint=hint)
    chosen = "plain" if found.flash_attn == "off" else "flash"
    say(f"Later loads on this CPU use {chosen} attention. `localspec info` shows both times.")
    return 0


def bench_built_in(arguments: argparse.Namespace) -> int:
    from localspec.loading.drafting import Drafting
    from localspec.measure import summary
    from localspec.measure.bench import AUTO, PLAIN, Arm, bench
    from localspec.measure.compare import DEMO_DEPTH
    from localspec.measure.race import CONTENDED

    prompts, began = chosen_prompts(arguments), perf_counter()
    temperatures = arguments.temperature or TEMPERATURES
    seconds = arguments.seconds if arguments.seconds or arguments.runs else SECONDS
    tokens = TOKENS if arguments.max_tokens is None else arguments.max_tokens
    contended = False

    def on_step(block: "BenchBlock", arm: Arm, spent: float) -> None:
        nonlocal contended
        contended |= session.pair.threads.contended
        limit = f" of {seconds:.0f}" if seconds else ""
        now = f"{block.prompt.category}: {block.prompt.name}, T={block.temperature:g}, {arm.name}"
        line.tell(f"{spent:.0f}{limit} s  {now}", block.prompt)

    with open_session(arguments) as session, stop_on_interrupt(session) as stopped:
        is_demo = session.pair.is_demo
        subject: dict[str, Any] = names_of(session) | {"draft": session.draft_name or "lookup"}
        subject |= {"load_seconds": perf_counter() - began, "max_tokens": tokens, "is_demo": is_demo}
        rounds = arguments.runs or (1 if is_demo and not arguments.seconds else None)
        arms = (PLAIN, AUTO, *map(Arm, arguments.depths or (DEMO_DEPTH,) * is_demo))
        with DrawnLine(sys.stderr) as line:
            ended, what = stopped.is_set, (session, prompts, arms, temperatures, rounds, seconds, tokens)
            outcome = bench(*what, on_step=on_step, stopped=ended)
        assert isinstance(session.pair.drafting, Drafting)
        costs = session.pair.drafting.costs.table()
    if contended:
        say(CONTENDED, to=sys.stderr)
    found = summary.summarise(outcome.measurements)
    if not found.rows and found.too_short:
        raise LocalspecError("every reply was too short to time", hint="allow longer ones: --max-tokens 128")
    if not found.rows and outcome.too_long:
        hint = "load the pair with a larger context: --context N"
        raise ContextFull("no prompt fits into the context", hint=hint)
    if not found.rows:
        say("Stopped before the first prompt was measured.", to=sys.stderr)
    elif arguments.json:
        machine = summary.this_machine(arguments.threads)
        say_json({**subject, **summary.record(machine, outcome, found), "costs": asdict(costs)})
    else:
        say(DEMO_TABLE if is_demo else summary.headlines(found))
        say(f"\n{summary.overview(found, is_demo=is_demo)}\n")
        if outcome.too_long:
            say(f"Prompts that do not fit into the context: {', '.join(outcome.too_long)}.")
        if not is_demo and (longer := summary.hint(found)):
            say(longer)
        if outcome.stopped:
            say("Stopped early, so the intervals are wider.")
    return CANCELLED if outcome.stopped else 0


def chosen_prompts(arguments: argparse.Namespace) -> "list[BenchPrompt]":
    """Return the built-in prompts of --only. Raises BadSetting for options that need your own prompt."""
    from localspec.measure.bench import BUILT_IN_PROMPTS, Category

    for name in sorted(given_of(arguments, REPLY).keys() - {"temperature", "max_tokens"}):
        flag = "no-think" if name == "think" and arguments.think is False else name.replace("_", "-")
        raise BadSetting(f"--{flag} needs your own prompt", hint='add one: localspec bench PAIR "a prompt"')
    wanted = arguments.only or tuple(Category)
    if unknown := set(wanted) - set(Category):
        what = f"there is no kind of prompt called {min(unknown)!r}"
        raise BadSetting(what, hint=f"choose from {', '.join(Category)}")
    return [prompt for prompt in BUILT_IN_PROMPTS if prompt.category in wanted]


def bench_prompt(arguments: argparse.Namespace) -> int:
    from localspec.measure.compare import verdicts
    from localspec.measure.race import STOPPED
    from localspec.measure.summary import this_machine

    for name in ("depths", "only", "runs", "seconds"):
        if getattr(arguments, name):
            raise BadSetting(f"--{name} is for the built-in prompts", hint=f"leave out --{name}")
    arguments.temperature, *others = arguments.temperature or (None,)
    if others:
        raise BadSetting(
            "your own prompt is answered at one temperature", hint="give one value: --temperature 0"
        )
    options, prompt = reply_options(arguments), prompt_of(arguments)
    options.setdefault("max_tokens", configured().get("max_tokens", TOKENS))
    with open_session(arguments) as session, stop_on_interrupt(session):
        pair, machine = names_of(session), this_machine(arguments.threads)
        models = " with ".join(filter(None, (session.target_name, session.draft_name)))
        about = f"{models}; {machine.sentence()}"
        found, _ = compare_shown(session, prompt, about, quiet=arguments.json or arguments.quiet, **options)
        verdict = verdicts(found, session.text_of) if found else []
    if found is None:
        say(STOPPED, to=sys.stderr)
        return CANCELLED
    if arguments.json:
        same = ("rule", "identical", "speedup", "width_difference", "cancelled", "contended", "is_demo")
        facts: dict[str, Any] = {name: getattr(found, name) for name in same}
        facts |= {name: reply_as_json(getattr(found, name)) for name in ("plain", "speculative")}
        facts |= {"divergence": asdict(found.divergence) if found.divergence else None}
        facts |= {"verdict": " ".join(verdict), "machine": asdict(machine)}
        say_json({**pair, **facts}, ensure_ascii=False)
    else:
        say("\n".join(verdict))
    return CANCELLED if found.cancelled else 0


def compare_shown(
    session: "Session", prompt: str, about: str, *, quiet: bool = False, **options: "Unpack[ReplyOptions]"
) -> "tuple[Comparison | None, Race]":
    """Compare plain decoding with drafting, as a race on a terminal; return the comparison and the race.

    During the drafted reply the race shows the plain reply as it was after the same time. The comparison is
    None if the plain reply was stopped with too few tokens.
    """
    from rich.live import Live

    from localspec.measure.compare import Comparison, compare_events
    from localspec.measure.race import Race, RaceSide, picture

    race, comparison = Race(*[RaceSide(is_demo=session.pair.is_demo)] * 2), None
    drawn = obeys_sequences(sys.stdout) and not quiet
    live = Live(auto_refresh=False)

    def show(race: "Race") -> None:
        ended = race.plain.is_done and race.drafting.is_done
        room = None if ended else (live.console.width, live.console.height)
        live.update(picture(race.race_sides, prompt, about, "", race.branch_point, room), refresh=True)

    with live if drawn else nullcontext(), DrawnLine(sys.stderr) as line:
        for step in compare_events(session, prompt, **options):
            if isinstance(step, Comparison):
                comparison = step
                continue
            if isinstance(step.event, Notice):
                line.clear()
                print_notice(step.event.text)
            side = "drafting" if step.speculative else "plain"
            race = replace(race, **{side: getattr(race, side).after(step.event)})
            if drawn and isinstance(step.event, Cycle):
                plain = race.plain.until(race.drafting.seconds) if step.speculative else race.plain
                show(replace(race, plain=plain))
            elif not drawn:
                tokens = counted(getattr(race, side).tokens, "token")
                line.draw(f"{side}, {1 + step.speculative} of 2: {tokens}")
        if drawn:
            show(race)
    return comparison, race
