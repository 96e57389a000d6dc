"""Measure how much faster a pair is than its target alone. Without a prompt: on built-in prompts of six kinds, at
temperatures 0 and 0.8, with intervals and a verdict. With a prompt: on this prompt, and whether the text is the same.
Later runs use what drafting learns here. Ctrl-C ends it and keeps what was measured.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.chat.loaded_pair import TOY
from localspec.cli import CANCELLED
from localspec.cli.commands.run import as_json as reply_as_json
from localspec.cli.loading import names_of, open_session, stop_on_interrupt
from localspec.cli.options import (
    add_pair_options,
    add_reply_options,
    drawable,
    given_of,
    number,
    reply_options,
)
from localspec.cli.prompt import add_prompt_argument, prompt_of, take_pair
from localspec.display import (
    JSON_VERSION,
    DrawnLine,
    bar_text,
    counted,
    note,
    obeys_sequences,
    say,
    say_json,
)
from localspec.errors import BadSetting, ContextFull, LocalspecError
from localspec.events import Cycle, Notice, Started
from localspec.options import MOST_DEPTH, REPLY

if TYPE_CHECKING:
    from localspec.measure.bench import BenchOutcome, BenchStep, Limits
    from localspec.measure.compare import Comparison, SideEvent
    from localspec.measure.race import Race

SECONDS = 300.0  # if neither a time nor a number of runs is given
TEMPERATURES, TOKENS = (0.0, 0.8), 128  # of replies to built-in prompts
_BAR = 16  # characters of the progress bar
_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_argument(parser, optional=True)
    add_pair_options(parser)
    limit = f"end the reply after N tokens (default: {TOKENS}; no limit for a prompt of yours)"
    tokens = {"help": limit, "type": number(int, 1)}
    add_reply_options(parser, temperature={"type": list_of(number(float, 0))}, max_tokens=tokens)
    group = parser.add_argument_group("measurement")
    fixed = "fixed depths to measure beside auto"
    group.add_argument("--depths", type=list_of(number(int, 1, MOST_DEPTH)), metavar="N,N", help=fixed)
    kinds = "kinds of built-in prompts: code, chat, prose, json, edit, long"
    group.add_argument("--only", type=list_of(str), metavar="WHAT", help=kinds)
    add = group.add_mutually_exclusive_group().add_argument
    rounds = "rounds over the built-in prompts, or replies of each side to yours (default: 1)"
    add("--runs", type=number(int, 1), metavar="N", help=rounds)
    limit = f"time limit of the built-in prompts (default: {SECONDS:g})"
    add("--seconds", type=number(float, 0, above=True), metavar="S", help=limit)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the report")
    what = "for your own prompt, also draw the race into an SVG file"
    parser.add_argument("--svg", type=drawable, metavar="FILE", help=what)


def run(arguments: argparse.Namespace) -> int:
    take_pair(arguments, prompt_optional=True)
    if arguments.no_draft or arguments.depth == 0:
        hint = "leave out --no-draft and --depth 0"
        raise BadSetting("without drafting, both sides would be plain decoding", hint=hint)
    if arguments.words or arguments.file:
        return bench_prompt(arguments)
    return bench_built_in(arguments)


def bench_built_in(arguments: argparse.Namespace) -> int:
    """Measure with the built-in prompts until the time or the rounds are over."""
    from localspec.measure.bench import AUTO, PLAIN, Arm, Category, Limits, bench, built_in_prompts
    from localspec.measure.compare import TOY_DEPTH
    from localspec.measure.race import CROWDED

    refuse_what_needs_a_prompt(arguments)
    wanted = arguments.only or tuple(Category)
    if unknown := set(wanted) - set(Category):
        raise BadSetting(f"no category called {min(unknown)!r}", hint=f"there are: {', '.join(Category)}")
    prompts, began = [prompt for prompt in built_in_prompts() if prompt.category in wanted], perf_counter()
    temperatures = arguments.temperature or TEMPERATURES
    seconds = arguments.seconds if arguments.seconds or arguments.runs else SECONDS
    tokens = TOKENS if arguments.max_tokens is None else arguments.max_tokens
    limits = Limits(rounds=arguments.runs, seconds=seconds, max_tokens=tokens)
    crowded = False
    with open_session(arguments) as session, stop_on_interrupt(session) as stopped:
        loading = {"load_seconds": perf_counter() - began, "max_tokens": tokens, "toy": session.pair.is_toy}
        subject = names_of(session) | {"draft": session.draft_name or "lookup"} | loading

        def on_step(step: "BenchStep") -> None:
            nonlocal crowded
            crowded |= session.pair.drafting.crowded
            share = share_done(step, len(prompts) * len(temperatures), limits)
            line.tell(progress_text(step, share), int(share * 10))

        depths = arguments.depths or (TOY_DEPTH,) * session.pair.is_toy
        arms, watch = (PLAIN, AUTO, *map(Arm, depths)), {"stopped": stopped.is_set}
        with DrawnLine(sys.stderr) as line:
            outcome = bench(session, prompts, arms, temperatures, limits, on_step=on_step, **watch)
    if crowded:
        say(CROWDED, to=sys.stderr)
    tell(arguments, subject, outcome)
    return CANCELLED if outcome.stopped else 0


def refuse_what_needs_a_prompt(arguments: argparse.Namespace) -> None:
    """Raises BadSetting for an option that built-in prompts do not take."""
    given = {*given_of(arguments, REPLY), *(["svg"] if arguments.svg else [])}
    for name in sorted(given - {"temperature", "max_tokens"}):
        flag = "no-think" if name == "think" and not arguments.think else name.replace("_", "-")
        raise BadSetting(f"--{flag} goes with a prompt of yours", hint='localspec bench PAIR "a prompt"')


def tell(arguments: argparse.Namespace, subject: Mapping[str, Any], outcome: "BenchOutcome") -> None:
    """Print the report or the JSON."""
    from localspec.measure.summary import headlines, record, report, summarise, this_machine

    summary = summarise(outcome.measurements)
    if not summary.rows and summary.too_short:
        raise LocalspecError("every reply was too short to time", hint="allow longer ones: --max-tokens 128")
    if not summary.rows and outcome.too_long:
        hint = "load the pair with a larger one: --context"
        raise ContextFull("no prompt fits into the context", hint=hint)
    if not summary.rows:
        say("Stopped before a prompt was finished with every depth.", to=sys.stderr)
        return
    machine = this_machine(arguments.threads)
    recorded = {"version": JSON_VERSION, **subject, **record(machine, outcome, summary)}
    if arguments.json:
        say_json(recorded)
        return
    toy = bool(subject["toy"])
    say(TOY if toy else headlines(summary))
    say(f"\n{report(summary, toy=toy)}\n")
    say("{target} with {draft}, loaded in {load_seconds:.1f} s".format(**subject))
    say(machine.sentence())
    if outcome.too_long:
        say(f"No room in the context for: {', '.join(outcome.too_long)}.")
    if outcome.stopped:
        say("Stopped early, so the intervals are wider.")


def write_svg(file: Path, drawing: str) -> None:
    """Write a drawing; a file that cannot be written loses nothing else."""
    try:
        file.write_text(drawing, encoding="utf-8")
    except OSError as error:
        note(f"{error.filename} was not written: {error.strerror}")


def list_of(kind: Callable[[str], _T]) -> Callable[[str], tuple[_T, ...]]:
    """Reads values with commas between them, each once."""

    def read(text: str) -> tuple[_T, ...]:
        return tuple(dict.fromkeys(kind(part.strip()) for part in text.split(",")))

    return read


def share_done(step: "BenchStep", blocks_in_round: int, limits: "Limits") -> float:
    """The share of the nearer limit."""
    by_time = step.seconds / limits.seconds if limits.seconds else 0.0
    by_rounds = step.blocks_done / (blocks_in_round * limits.rounds) if limits.rounds else 0.0
    return min(max(by_time, by_rounds), 1.0)


def progress_text(step: "BenchStep", share: float) -> str:
    """The share that is done, and the running prompt and arm."""
    minutes, seconds = divmod(int(step.seconds), 60)
    block = step.block
    return (
        f"{bar_text(share, _BAR)}  {minutes}:{seconds:02d}  {block.prompt.category}: "
        f"{block.prompt.name}, T={block.temperature:g}, {step.arm.name}"
    )


def bench_prompt(arguments: argparse.Namespace) -> int:
    """Answer one prompt with and without drafting, in turns."""
    from localspec.measure.compare import Comparison, about_speed, compare_events, table, verdicts
    from localspec.measure.race import svg
    from localspec.measure.summary import this_machine

    for name in ("depths", "only", "seconds"):
        if getattr(arguments, name):
            raise BadSetting(f"--{name} goes with the built-in prompts", hint="leave it out, or the prompt")
    arguments.temperature, *others = arguments.temperature or (None,)
    if others:
        raise BadSetting("a prompt of yours is answered at one temperature", hint="give one")
    options, prompt = reply_options(arguments), prompt_of(arguments)
    runs = 1 if arguments.runs is None else arguments.runs
    comparison, said = None, list[str]()
    with open_session(arguments) as session, stop_on_interrupt(session):
        pair = names_of(session)
        about = f"{' with '.join(filter(None, (session.target_name, session.draft_name)))}; {this_machine().sentence()}"
        with RaceShown(prompt, about, runs, arguments.json, toy=session.pair.is_toy) as shown:
            for event in compare_events(session, prompt, n=runs, **options):
                if isinstance(event, Comparison):
                    comparison, said = event, verdicts(event, session.text_of)
                else:
                    shown.take(event)
    if comparison is None:
        say("Stopped before both sides had replied.", to=sys.stderr)
        return CANCELLED
    if arguments.json:
        say_json({**pair, **record_of(comparison), "verdict": " ".join(said)}, ensure_ascii=False)
    else:
        say("\n".join([*said, "", table(comparison)]))
        if arguments.svg:
            drawn = svg(shown.race.lanes, prompt, about, about_speed(comparison))
            write_svg(arguments.svg, drawn)
    return CANCELLED if comparison.cancelled else 0


class RaceShown:
    """The first reply of each kind beside the other as it is written, on a terminal; else a line of progress."""

    def __init__(self, prompt: str, about: str, runs: int, quiet: bool, *, toy: bool) -> None:
        from rich.live import Live

        from localspec.measure.race import Lane, Race

        self.race = Race(Lane(is_toy=toy), Lane(is_toy=toy))
        self._prompt, self._about, self._runs = prompt, about, runs
        self._line, self._tokens = DrawnLine(sys.stderr), 0
        self._live = Live(auto_refresh=False) if obeys_sequences(sys.stdout) and not quiet else None

    def __enter__(self) -> "RaceShown":
        self._line.__enter__()
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *ending: Any) -> None:  # noqa: ANN401
        if self._live:
            self._show(self.race)
            self._live.__exit__(*ending)
        self._line.__exit__(*ending)

    def take(self, step: "SideEvent") -> None:
        """Show one report; while drafting writes, plain decoding is shown as far as it was by then."""
        self._tokens = 0 if isinstance(step.event, Started) else self._tokens
        if isinstance(step.event, Notice):
            self._line.clear()
            note(step.event.text)
        if step.run == 0:
            side = "drafting" if step.speculative else "plain"
            self.race = replace(self.race, **{side: getattr(self.race, side).after(step.event)})
        if isinstance(step.event, Cycle):
            self._tokens += len(step.event.tokens)
            if self._live and step.run == 0:
                plain, drafting = self.race.plain, self.race.drafting
                self._show(
                    replace(self.race, plain=plain.until(drafting.seconds)) if step.speculative else self.race
                )
                return
        kind = ("plain", "speculative")[step.speculative]
        if not self._live or step.run:
            self._line.draw(f"{kind}, run {step.run + 1} of {self._runs}: {counted(self._tokens, 'token')}")

    def _show(self, race: "Race") -> None:
        from localspec.measure.race import picture

        assert self._live is not None
        self._live.update(picture(race.lanes, self._prompt, self._about), refresh=True)


def record_of(comparison: "Comparison") -> dict[str, Any]:
    """The comparison as values for JSON."""
    from localspec.measure.compare import Side

    found: dict[str, Any] = {}
    for name in ("plain", "speculative"):
        side: Side = getattr(comparison, name)
        all_stats = [reply.stats for reply in side.replies]
        times = ("prefill_seconds", "decode_seconds")
        found[name] = reply_as_json(side.reply) | {
            "runs": [{"tokens": s.emitted, **{time: getattr(s, time) for time in times}} for s in all_stats],
            "tokens_per_second": side.tokens_per_second,
        }
    same = [
        "rule",
        "identical",
        "width_difference",
        "speedup",
        "total_speedup",
        "cancelled",
        "crowded",
        "toy",
    ]
    where = asdict(comparison.divergence) if comparison.divergence else None
    found |= {name: getattr(comparison, name) for name in same}
    return found | {"divergence": where}
