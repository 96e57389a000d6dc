"""Answer one prompt: the text streams to stdout, numbers and notices go to stderr. On a terminal, a pair without a
prompt opens the chat.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.cli import CANCELLED
from localspec.cli.commands import chat
from localspec.cli.loading import names_of, open_engine_session, stop_on_interrupt
from localspec.cli.options import add_pair_options, add_quiet_option, add_reply_options, reply_options
from localspec.cli.prompt import add_prompt_argument, prompt_of, something_is_piped, take_pair
from localspec.display import JSON_VERSION, note, on_terminal, say, say_dimmed, say_json
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Event, Finished, FinishReason, Kind, Notice, Piece, Reply, Started
from localspec.files import text_of

if TYPE_CHECKING:
    from localspec.chat.conversations import Conversation, Journal

ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: " · cut at the token limit",
    FinishReason.CANCELLED: " · stopped",
}
MOSTLY_READING = 0.5  # of a reply's time: from here on a summary says where it went


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_argument(parser)
    add_pair_options(parser)
    add_reply_options(parser)
    add = parser.add_argument_group("conversation").add_argument
    last = "resume the last conversation"
    add("-c", "--continue", dest="resume", action="store_const", const="", help=last)
    add("--conversation", dest="resume", metavar="ID", help="resume this one")
    store = "keep the conversation for later (default: on a terminal, and when one is resumed)"
    add("--store", action=argparse.BooleanOptionalAction, help=store)
    guess = "draft from this text, a guess at the reply, for example a file to edit"
    parser.add_argument("--predict", metavar="FILE", help=guess)
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--raw", action="store_true", help="continue the text as it is: no chat template")
    form = group.add_mutually_exclusive_group().add_argument
    form("--json", action="store_true", help="print one JSON object with text and stats at the end")
    form("--json-lines", action="store_true", help="print a JSON object for each piece of text as it comes")
    add_quiet_option(group)
    add("--stats", action="store_true", help="print all numbers of the run to stderr")


def run(arguments: argparse.Namespace) -> int:
    take_pair(arguments)
    asked = arguments.words or arguments.file or something_is_piped()
    if arguments.name and not asked and on_terminal(sys.stdin) and on_terminal(sys.stdout):
        return chat.run_with(arguments.name)
    think = {None: "", True: "--think", False: "--no-think"}[arguments.think]
    if arguments.raw and (flag := "--system" if arguments.system is not None else think):
        what = f"--raw continues the text without a chat template, which {flag} needs"
        raise BadSetting(what, hint="leave one of them out")
    options, prompt = reply_options(arguments), prompt_of(arguments)
    if arguments.predict is not None:
        options["prediction"] = text_of(arguments.predict)
    with prompt_conversation(arguments) as (journal, before):
        if before:
            options = {"system": before.system or None} | options
            chat.take_pair_of(before.pair, arguments)
        with open_engine_session(arguments) as session, stop_on_interrupt(session):
            if before and before.messages:
                session.resume([{"role": m.role, "content": m.content} for m in before.messages])
            stream = session.stream_complete if arguments.raw else session.stream
            events, names = stream(prompt, **options), names_of(session)
            reply = show_lines(events, names) if arguments.json_lines else show(events, quiet=arguments.json)
            if arguments.json:
                say_json({**names, **as_json(reply)}, ensure_ascii=False)
            if journal and reply.tokens:
                journal.pair = session.name
                store(journal, prompt, reply, asked=arguments.store is True)
    if arguments.stats or not (arguments.json or arguments.json_lines or arguments.quiet):
        say(report(reply) if arguments.stats else summary(reply), to=sys.stderr)
    if reply.finish_reason is FinishReason.CANCELLED:
        return CANCELLED
    if reply.unmatched:
        cut = reply.finish_reason is FinishReason.LENGTH
        hint = "allow more tokens: -n, --context" if cut else "say in the prompt how the answer must look"
        raise LocalspecError(reply.unmatched, hint=hint)
    return 0


def show(events: Iterator[Event], *, quiet: bool) -> Reply:
    """Print text as it comes; reasoning goes to stderr, so that stdout holds the answer alone."""
    written, late = "\n", []
    for event in events:
        match event:
            case Piece(text=text, kind=Kind.ANSWER):
                if not quiet:
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
                    if text != reply.unmatched:
                        note(text)
                return reply
    raise AssertionError("a run ends with Finished")


def show_lines(events: Iterator[Event], names: dict[str, str]) -> Reply:
    """Print each event as a JSON object in a line; the last one is the reply, as with --json."""
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
        say(json.dumps(line, ensure_ascii=False), wrap=False)
    raise AssertionError("a run ends with Finished")


def as_json(reply: Reply) -> dict[str, Any]:
    derived = (
        *("tokens_per_second", "acceptance_rate", "mean_accepted_length", "acceptance_by_position"),
        *("decode_seconds", "prefill_share", "saved_seconds"),
    )
    stats = asdict(reply.stats) | {name: getattr(reply.stats, name) for name in derived}
    speedup = asdict(reply.stats.speedup) if reply.stats.speedup else None
    same = ("text", "reasoning", "tokens", "seed", "finish_reason")
    return {name: getattr(reply, name) for name in same} | {"stats": stats | {"speedup": speedup}}


@contextmanager
def prompt_conversation(
    arguments: argparse.Namespace,
) -> "Iterator[tuple[Journal | None, Conversation | None]]":
    """The file that the prompt is stored in and the earlier conversation, held while the command lasts.

    Raises BrokenConversation, ConversationInUse, BadSetting.
    """
    from localspec.chat import conversations
    from localspec.options import configured, data_dir

    folder = data_dir() / "conversations"
    journal = before = None
    stored = arguments.store
    if arguments.resume is not None:
        if arguments.raw:
            raise BadSetting(
                "--raw has no conversation to resume", hint="leave out --raw, or the conversation"
            )
        journal, before = conversations.resume(conversations.find(folder, arguments.resume).path)
        stored = stored is not False
    elif on_terminal(sys.stdout) if stored is None else stored:
        journal = conversations.Journal.new(folder, "", "")
        stored = not arguments.raw
    if journal is None:
        yield None, None
        return
    system = arguments.system if before else configured(system=arguments.system).get("system")
    journal.system = journal.system if system is None else system
    with closing(journal):
        yield journal if stored else None, before


def store(journal: "Journal", prompt: str, reply: Reply, *, asked: bool) -> None:
    """Store a question and its reply. Raises LocalspecError if --store `asked` for it and it fails.

    Without --store a note says so, also with --quiet: the conversation cannot be resumed.
    """
    from localspec.chat.conversations import Numbers, StoredMessage

    numbers, ending = Numbers.of(reply.stats), reply.finish_reason.value
    said = (reply.text, reply.reasoning, reply.reasoning_tokens)
    try:
        journal.add(StoredMessage("user", prompt))
        journal.add(StoredMessage("assistant", *said, ending, numbers))
    except OSError as error:
        what = f"the conversation is not stored: {error.strerror or error}"
        if asked:
            raise LocalspecError(what, hint="make room, or set LOCALSPEC_HOME to another folder") from error
        say(f"note: {what}", to=sys.stderr)


def summary(reply: Reply) -> str:
    """One line: how fast, and what speculation contributed."""
    stats = reply.stats
    parts = [f"{stats.emitted} tokens", f"{stats.tokens_per_second:.1f} tokens/s"]
    if stats.accepted:
        parts.append(f"{stats.acceptance_rate:.0%} of drafts accepted")
        parts.append(f"{stats.mean_accepted_length:.2f} tokens per target pass")
    elif stats.drafted:
        parts.append(f"{stats.drafted} drafted, 0 accepted")
    if stats.from_prediction:
        parts.append(f"{stats.from_prediction} tokens from the prediction")
    line = "[" + " · ".join(parts) + ENDINGS[reply.finish_reason] + "]"
    if stats.prefill_share < MOSTLY_READING or stats.emitted < 2:
        return line
    read = stats.prompt_tokens - stats.reused_tokens
    return (
        f"{line}\n{stats.prefill_share:.0%} of this was reading the prompt ({read} tokens "
        f"in {stats.prefill_seconds:.1f} s), where speculation cannot help."
    )


def report(reply: Reply) -> str:
    """Every number, a line each, with what it counts."""
    s, share = reply.stats, reply.stats.prefill_share
    by_position = " ".join(f"{rate:.0%}" for rate in s.acceptance_by_position) or "-"
    sources = {"a model": s.from_model, "a head": s.from_head, "lookup": s.from_lookup}
    sources |= {"the prediction": s.from_prediction, "the grammar": s.from_grammar}
    proposed = ", ".join(f"{count} by {source}" for source, count in sources.items() if count)
    drafting = f"inside the draft model, {s.draft_reading_seconds:.3f} s of it to read the text"
    prefill = f"{share:.0%} of the time; drafting cannot speed it up"
    rows = [
        ("finish reason", reply.finish_reason, ""),
        ("seed", str(reply.seed), ""),
        ("prompt", f"{s.prompt_tokens} tokens", f"{s.reused_tokens} of them already in the cache"),
        ("from the disk", f"{s.restored_tokens} tokens", f"of these, in {s.restore_seconds:.3f} s"),
        ("prefill", f"{s.prefill_seconds:.3f} s", prefill),
        ("first token", f"{s.first_token_seconds:.3f} s", "after the request"),
        ("decode", f"{s.decode_seconds:.3f} s", f"{1 - share:.0%} of the time"),
        ("emitted", f"{s.emitted} tokens", f"in {s.cycles} target passes"),
        ("from the target", f"{s.from_target} tokens", f"proposed: {proposed}" if proposed else ""),
        ("speed", f"{s.tokens_per_second:.1f} tokens/s", "emitted / (draft + verify + other)"),
        ("drafted", f"{s.drafted} tokens", f"{s.accepted} accepted"),
        ("acceptance rate", f"{s.acceptance_rate:.1%}", f"by position: {by_position}"),
        (
            "mean accepted length",
            f"{s.mean_accepted_length:.2f}",
            "tokens per target pass; plain decoding: 1",
        ),
        ("draft", f"{s.draft_seconds:.3f} s", drafting),
        ("verify", f"{s.verify_seconds:.3f} s", "inside the target model"),
        ("other", f"{s.other_seconds:.3f} s", "everything else"),
    ]
    return "\n".join(f"{name:<21} {value:<18} {meaning}".rstrip() for name, value, meaning in rows)
