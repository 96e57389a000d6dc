"""`localspec run`: one prompt, the reply on stdout as it comes, everything else on stderr."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from localspec.cli import CANCELLED
from localspec.cli.commands import chat
from localspec.cli.loading import names_of, open_engine_session, stop_on_interrupt
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
from localspec.cli.usage import Subparsers, WrongUsage, refuse_together
from localspec.errors import LocalspecError
from localspec.events import Event, Finished, FinishReason, Kind, Notice, Piece, Reply, Started, Stats

ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: " · cut at the token limit",
    FinishReason.CANCELLED: " · stopped",
}
MOSTLY_READING = 0.5  # of a reply's time: from here on a summary says where it went


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


if TYPE_CHECKING:
    from localspec.conversations import Conversation, Journal
    from localspec.engine.session import EngineSession
    from localspec.events import Reply


def add_conversation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversation")
    group.add_argument(
        "-c",
        "--continue",
        dest="resume",
        action="store_const",
        const="",
        help="go on with the conversation last talked in, in the chat or here",
    )
    group.add_argument("--conversation", dest="resume", metavar="ID", help="go on with this one")
    group.add_argument(
        "--store",
        action=argparse.BooleanOptionalAction,
        help="keep the conversation, to go on with (default: on a terminal, and where one goes on)",
    )


class NotStored(LocalspecError):
    """A conversation that --store was to keep."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The conversation that a prompt belongs to."""

    journal: "Journal | None"  # None: it is not to be stored
    asked: bool = False  # whether --store was given
    before: "Conversation | None" = None  # that it goes on from

    @property
    def pair(self) -> str | None:
        """The pair that it was with, if that is a known one."""
        from localspec.pairs.registry import is_known

        return self.before.pair if self.before and is_known(self.before.pair) else None

    def resume(self, session: "EngineSession") -> None:
        """Tell a session what was said before."""
        if self.before and self.before.messages:
            session.resume([{"role": m.role, "content": m.content} for m in self.before.messages])

    def add(self, pair: str, prompt: str, reply: "Reply") -> None:
        """Store a question and its reply. Raises NotStored where that was asked for and fails.

        Where it was not, a note says so, also in silence: the conversation cannot be gone on with.
        """
        from localspec.conversations import Numbers, StoredMessage

        if self.journal is None or not reply.tokens:
            return
        self.journal.pair = pair
        answer = StoredMessage(
            "assistant",
            reply.text,
            reply.reasoning,
            reply.reasoning_tokens,
            reply.finish_reason.value,
            Numbers.of(reply.stats),
        )
        try:
            self.journal.add(StoredMessage("user", prompt))
            self.journal.add(answer)
        except OSError as error:
            what = f"the conversation is not stored: {error.strerror or error}"
            if self.asked:
                raise NotStored(what, hint="make room, or set LOCALSPEC_HOME to another folder") from error
            say(f"note: {what}", to=sys.stderr)


@contextmanager
def kept_conversation(arguments: argparse.Namespace) -> Iterator[Kept]:
    """The conversation of a command, held while it lasts. Raises BrokenConversation, ConversationInUse, WrongUsage."""
    from localspec import conversations
    from localspec.settings import Settings, data_dir

    folder = data_dir() / "conversations"
    journal = before = None
    stored = arguments.store
    if arguments.resume is not None:
        if arguments.raw:
            raise WrongUsage("--raw has no conversation to go on with", hint="leave one of them out")
        journal, before = conversations.resume(conversations.find(folder, arguments.resume).path)
        stored = stored is not False
    elif on_terminal(sys.stdout) if stored is None else stored:
        journal = conversations.Journal.new(folder, "", "")
        stored = not arguments.raw
    if journal:
        system = Settings.load(system=arguments.system).system if not before else arguments.system
        journal.system = journal.system if system is None else system
    try:
        yield Kept(journal if stored else None, arguments.store is True, before)
    finally:
        if journal:
            journal.close()


def summary(reply: Reply) -> str:
    """One line: how fast, and what speculation contributed."""
    stats = reply.stats
    parts = [f"{stats.emitted} tokens", f"{stats.tokens_per_second:.1f} tokens/s"]
    if stats.drafted:
        parts.append(f"{stats.acceptance_rate:.0%} of drafts accepted")
        parts.append(f"{stats.mean_accepted_length:.2f} tokens per target pass")
    if stats.from_prediction:
        parts.append(f"{stats.from_prediction} tokens from the prediction")
    line = "[" + " · ".join(parts) + ENDINGS[reply.finish_reason] + "]"
    return f"{line}\n{reading}" if (reading := about_reading(stats)) else line


def about_reading(stats: Stats) -> str:
    """A sentence where most of the time went into the prompt; else nothing."""
    if stats.prefill_share < MOSTLY_READING:
        return ""
    read = stats.prompt_tokens - stats.reused_tokens
    return (
        f"{stats.prefill_share:.0%} of this was reading the prompt ({read} tokens "
        f"in {stats.prefill_seconds:.1f} s), where speculation cannot help."
    )


def report(reply: Reply) -> str:
    """Every number, a line each, with what it counts."""
    stats = reply.stats
    by_position = " ".join(f"{rate:.0%}" for rate in stats.acceptance_by_position) or "-"
    sources = {
        "a model": stats.from_model,
        "a head": stats.from_head,
        "lookup": stats.from_lookup,
        "the prediction": stats.from_prediction,
        "the grammar": stats.from_grammar,
    }
    proposed = ", ".join(f"{count} by {source}" for source, count in sources.items() if count)
    rows = [
        ("finish reason", reply.finish_reason, ""),
        ("seed", str(reply.seed), ""),
        ("prompt", f"{stats.prompt_tokens} tokens", f"{stats.reused_tokens} of them already in the cache"),
        (
            "prefill",
            f"{stats.prefill_seconds:.3f} s",
            f"{stats.prefill_share:.0%} of the time, which speculation cannot touch",
        ),
        ("first token", f"{stats.first_token_seconds:.3f} s", "after the request"),
        ("decode", f"{stats.decode_seconds:.3f} s", f"{1 - stats.prefill_share:.0%} of the time"),
        ("emitted", f"{stats.emitted} tokens", f"in {stats.cycles} target passes"),
        ("from the target", f"{stats.from_target} tokens", f"proposed: {proposed}" if proposed else ""),
        ("speed", f"{stats.tokens_per_second:.1f} tokens/s", "emitted / (draft + verify + other)"),
        ("drafted", f"{stats.drafted} tokens", f"{stats.accepted} accepted"),
        ("acceptance rate", f"{stats.acceptance_rate:.1%}", f"by position: {by_position}"),
        (
            "mean accepted length",
            f"{stats.mean_accepted_length:.2f}",
            "tokens per target pass; 1 is plain decoding",
        ),
        (
            "draft",
            f"{stats.draft_seconds:.3f} s",
            f"inside the draft model, {stats.draft_reading_seconds:.3f} s of it to read the text",
        ),
        ("verify", f"{stats.verify_seconds:.3f} s", "inside the target model"),
        ("other", f"{stats.other_seconds:.3f} s", "everything else"),
    ]
    return "\n".join(f"{name:<21} {value:<18} {meaning}".rstrip() for name, value, meaning in rows)
