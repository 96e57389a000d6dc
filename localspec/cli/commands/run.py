"""`localspec run`: one prompt, the reply on stdout as it comes, everything else on stderr."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from localspec.cli.commands import chat
from localspec.cli.interrupts import CANCELLED, stop_on_interrupt
from localspec.cli.kept import add_conversation_options, kept_conversation
from localspec.cli.loading import names_of, open_engine_session
from localspec.cli.options import (
    add_pair_options,
    add_quiet_option,
    add_reply_options,
    pair_of,
    reply_options,
    text_of,
)
from localspec.cli.printing import JSON_VERSION, note, on_terminal, say, say_dimmed, say_json
from localspec.cli.prompt import add_prompt_argument, prompt_of, something_is_piped, take_pair
from localspec.cli.report import report, summary
from localspec.cli.usage import Subparsers, WrongUsage, refuse_together
from localspec.events import Event, Finished, FinishReason, Kind, Notice, Piece, Reply, Started


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "run",
        help="answer one prompt",
        description="Answer one prompt: the text streams to stdout, numbers and notices go to stderr. With the name "
        "of a pair and nothing to ask it, open the chat with that pair.",
    )
    add_prompt_argument(parser)
    add_pair_options(parser)
    add_reply_options(parser)
    add_conversation_options(parser)
    parser.add_argument(
        "--predict",
        metavar="FILE",
        help="what the reply probably is, such as a file to be edited: drafted from",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--raw", action="store_true", help="continue the text as it is: no chat template")
    group.add_argument(
        "--json", action="store_true", help="print one JSON object with text and stats at the end"
    )
    group.add_argument(
        "--json-lines", action="store_true", help="print a JSON object for each piece of text as it comes"
    )
    add_quiet_option(group)
    group.add_argument("--stats", action="store_true", help="print all numbers of the run to stderr")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    take_pair(arguments)
    if opens_chat(arguments):
        return chat.run_with(arguments.name)
    if arguments.raw:
        refuse_what_needs_a_template(arguments)
    refuse_together(("--json", arguments.json or None), ("--json-lines", arguments.json_lines or None))
    options, prompt = reply_options(arguments), prompt_of(arguments)
    if arguments.predict is not None:
        options["prediction"] = text_of(arguments.predict)
    with kept_conversation(arguments) as kept:
        if kept.before:
            options = {"system": kept.before.system or None} | options
        if kept.before and not (arguments.target or pair_of(arguments)):
            arguments.name = kept.pair
            if kept.pair is None:
                note(f"the conversation was with {kept.before.pair}, which is no known pair")
        with open_engine_session(arguments) as session, stop_on_interrupt(session):
            kept.resume(session)
            stream = session.stream_complete if arguments.raw else session.stream
            reply = answer(stream(prompt, **options), arguments, names_of(session))
            kept.add(session.name, prompt, reply)
    if arguments.stats or not (arguments.json or arguments.json_lines or arguments.quiet):
        say(report(reply) if arguments.stats else summary(reply), to=sys.stderr)
    return CANCELLED if reply.finish_reason is FinishReason.CANCELLED else 0


def opens_chat(arguments: argparse.Namespace) -> bool:
    """Whether a pair was named with nothing to ask it, where it can be talked to."""
    asked = arguments.words or arguments.file or something_is_piped()
    return bool(arguments.name) and not asked and on_terminal(sys.stdin) and on_terminal(sys.stdout)


def answer(events: Iterator[Event], arguments: argparse.Namespace, names: dict[str, str]) -> Reply:
    """Print the reply in the form that was asked for; `names`: of the pair and its models."""
    if arguments.json_lines:
        return show_lines(events, names)
    reply = show(events, quiet=arguments.json)
    if arguments.json:
        say_json({**names, **as_json(reply)}, ensure_ascii=False)
    return reply


def refuse_what_needs_a_template(arguments: argparse.Namespace) -> None:
    """Raises WrongUsage for options of a conversation, which would have no effect beside --raw."""
    flags = {
        "--system": arguments.system is not None,
        "--think": arguments.think is True,
        "--no-think": arguments.think is False,
    }
    for flag, given in flags.items():
        if given:
            raise WrongUsage(
                f"--raw continues the text without a chat template, which {flag} needs",
                hint="leave one of them out",
            )


def show(events: Iterator[Event], *, quiet: bool) -> Reply:
    """Print text as it comes; reasoning goes to stderr, so that stdout holds the answer alone."""
    written, late = "\n", []
    for event in events:
        match event:
            case Piece(text=text, kind=Kind.ANSWER) if not quiet:
                say(text, end="")
                written = text
            case Piece(text=text, kind=Kind.REASONING) if not quiet:
                say_dimmed(text)
            case Notice(text=text) if written == "\n":
                note(text)
            case Notice(text=text):
                late.append(text)  # not into the middle of the text
            case Finished(reply=reply):
                if not quiet and not written.endswith("\n"):
                    say("")
                for text in late:
                    note(text)
                return reply
    raise AssertionError("a run ends with Finished")


def show_lines(events: Iterator[Event], names: dict[str, str]) -> Reply:
    """Print what comes as objects of JSON, one a line; the last one is the reply, as --json has it."""
    for event in events:
        match event:
            case Started():
                line = {"version": JSON_VERSION, "event": "started", **names, "seed": event.seed}
            case Piece():
                line = {"event": "text", "kind": event.kind, "text": event.text}
            case Notice():
                line = {"event": "notice", "text": event.text}
            case Finished(reply=reply):
                say_json({"event": "reply", **names, **as_json(reply)}, ensure_ascii=False)
                return reply
            case _:
                continue
        say(json.dumps(line, ensure_ascii=False))
    raise AssertionError("a run ends with Finished")


def as_json(reply: Reply) -> dict[str, Any]:
    stats = reply.stats
    derived = (
        "tokens_per_second",
        "acceptance_rate",
        "mean_accepted_length",
        "acceptance_by_position",
        "decode_seconds",
        "prefill_share",
        "saved_seconds",
    )
    speedup = asdict(stats.speedup) if stats.speedup else None
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "tokens": reply.tokens,
        "seed": reply.seed,
        "finish_reason": reply.finish_reason,
        "stats": {**asdict(stats), **{name: getattr(stats, name) for name in derived}, "speedup": speedup},
    }
