"""`localspec compare`: one prompt with and without drafting, side by side."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.cli.commands.run import as_json
from localspec.cli.interrupts import CANCELLED, stop_on_interrupt
from localspec.cli.loading import names_of, open_session
from localspec.cli.options import add_pair_options, add_reply_options, reply_options
from localspec.cli.printing import DrawnLine, note, say, say_json
from localspec.cli.prompt import add_prompt_argument, prompt_of, take_pair
from localspec.cli.usage import Subparsers, WrongUsage
from localspec.events import Cycle, Notice, Started

if TYPE_CHECKING:
    from localspec.measure.compare import Comparison, SideEvent


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="answer one prompt with and without drafting",
        description="Answer one prompt with and without drafting, in turns, and say where the texts part and "
        "how much faster it was. `localspec bench` measures a pair, `localspec verify` tests it.",
    )
    add_prompt_argument(parser)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="runs of each kind (default: 1)")
    add_pair_options(parser)
    add_reply_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--texts", action="store_true", help="also print both texts")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.measure.compare import Comparison, compare_events

    if arguments.no_draft or arguments.depth == 0:
        raise WrongUsage(
            "without drafting both sides would be plain decoding", hint="leave out --no-draft and --depth 0"
        )
    take_pair(arguments)
    options, prompt = reply_options(arguments), prompt_of(arguments)
    comparison: Comparison | None = None
    with open_session(arguments, measures=True) as session, stop_on_interrupt(session):
        progress, names = CompareProgress(arguments.runs), names_of(session)
        for event in compare_events(session, prompt, n=arguments.runs, **options):
            if isinstance(event, Comparison):
                comparison = event
            else:
                progress.show(event)
        progress.clear()
        texts = token_texts(comparison, session.text_of) if comparison else None
    if comparison is None:
        say("Stopped before both sides had replied.", to=sys.stderr)
        return CANCELLED
    if arguments.json:
        say_json({**names, **record(comparison)}, ensure_ascii=False)
    else:
        say(told(comparison, texts))
    if arguments.texts and not arguments.json:
        say(f"\n--- plain\n{comparison.plain.text}\n--- speculative\n{comparison.speculative.text}")
    return CANCELLED if comparison.cancelled else 0


class CompareProgress:
    """Which run is on, and how far it is: one line that is drawn over; nothing without a terminal."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._tokens = 0
        self._line = DrawnLine(sys.stderr)

    def show(self, step: "SideEvent") -> None:
        match step.event:
            case Started():
                self._tokens = 0
            case Cycle(tokens=tokens):
                self._tokens += len(tokens)
            case Notice(text=text):
                self.clear()
                note(text)
            case _:
                return
        side = "speculative" if step.speculative else "plain"
        self._line.draw(f"{side}, run {step.run + 1} of {self._runs}: {self._tokens} tokens")

    def clear(self) -> None:
        self._line.clear()


def told(comparison: "Comparison", texts: tuple[str, str] | None) -> str:
    """The table, the tokens at which the texts part, the verdict."""
    from localspec.measure.compare import about_segments, table, verdict_on

    parts = [table(comparison), ""]
    if segments := about_segments(comparison):
        parts.append(segments)
    if comparison.divergence and texts:
        parts.append(f"Token {comparison.divergence.index + 1}: plain {texts[0]}, speculative {texts[1]}.")
    return "\n".join([*parts, verdict_on(comparison)])


def token_texts(comparison: "Comparison", text_of: Callable[[int], str]) -> tuple[str, str] | None:
    """What stands on both sides where the texts part."""
    where = comparison.divergence
    if where is None:
        return None
    plain, speculative = (
        "ended" if token is None else repr(text_of(token)) for token in (where.plain, where.speculative)
    )
    return plain, speculative


def record(comparison: "Comparison") -> dict[str, Any]:
    """The comparison as plain values."""
    from localspec.measure.compare import verdict_on

    return {
        **{
            name: {
                **as_json(side.reply),
                "runs": [
                    {
                        "tokens": reply.stats.emitted,
                        "prefill_seconds": reply.stats.prefill_seconds,
                        "decode_seconds": reply.stats.decode_seconds,
                    }
                    for reply in side.replies
                ],
                "tokens_per_second": side.tokens_per_second,
                "free_text": asdict(side.free_text),
                "structured_text": asdict(side.structured_text),
            }
            for name, side in (("plain", comparison.plain), ("speculative", comparison.speculative))
        },
        "rule": comparison.rule,
        "identical": comparison.identical,
        "divergence": asdict(comparison.divergence) if comparison.divergence else None,
        "width_difference": comparison.width_difference,
        "speedup": comparison.speedup,
        "total_speedup": comparison.total_speedup,
        "cancelled": comparison.cancelled,
        "crowded": comparison.crowded,
        "verdict": verdict_on(comparison),
    }
