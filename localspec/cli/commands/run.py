"""Answer one prompt: the text streams to stdout, numbers and notices go to stderr. On a terminal, a pair without a
prompt opens the chat.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
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
)
from localspec.cli.prompt import add_prompt_argument, prompt_of, something_is_piped, take_pair
from localspec.display import (
    DrawnLine,
    aligned,
    counted,
    note,
    on_terminal,
    say,
    say_dimmed,
    say_json,
)
from localspec.errors import BadSetting, LocalspecError
from localspec.events import (
    Event,
    Finished,
    FinishReason,
    Kind,
    Notice,
    Piece,
    Prefill,
    Reply,
    Started,
    Stats,
)
from localspec.files import text_of
from localspec.measure.race import NO_DRAFT, hardly_drafted
from localspec.options import configured

if TYPE_CHECKING:
    from localspec.chat.conversations import Conversation, Journal

ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: " · cut at the token limit",
    FinishReason.CANCELLED: " · stopped",
}
MOSTLY_READING = 0.5  # of a reply's time: from here on a summary says where it went
SEVERAL = 16  # tokens: of a shorter reply nothing can be said


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_argument(parser)
    add_pair_options(parser)
    add_reply_options(parser)
    add = parser.add_argument_group("conversation").add_argument
    last = "resume the last conversation"
    add("-c", "--continue", dest="resume", action="store_const", const="", help=last)
    add("--conversation", dest="resume", metavar="ID", help="resume this conversation")
    store = "keep the conversation for later (default: on a terminal, and when one is resumed)"
    add("--store", action=argparse.BooleanOptionalAction, help=store)
    guess = "draft from this text, a guess at the reply, for example a file to edit"
    parser.add_argument("--predict", metavar="FILE", help=guess)
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--raw", action="store_true", help="continue the text as it is: no chat template")
    add("--json", action="store_true", help="print one JSON object with text and stats at the end")
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
            chat.take_pair_of(before.pair, before.files, arguments)
        with open_engine_session(arguments) as session, stop_on_interrupt(session):
            if before and before.messages:
                session.resume([{"role": m.role, "content": m.content} for m in before.messages])
            stream = session.stream_complete if arguments.raw else session.stream
            events, names = stream(prompt, **options), names_of(session)
            reply, late = show(events, quiet=arguments.json)
            if arguments.json:
                say_json({**names, **as_json(reply)}, ensure_ascii=False)
            if journal and reply.tokens:
                from localspec.chat.conversations import files_of

                journal.pair = session.name
                journal.files = files_of(arguments.target or pair_of(arguments), arguments.draft)
                store(journal, prompt, reply, asked=arguments.store is True)
    if arguments.stats or not (arguments.json or arguments.quiet):
        say(report(reply) if arguments.stats else summary(reply), to=sys.stderr)
        drafts = not arguments.no_draft and configured(depth=arguments.depth).get("depth") != 0
        if drafts and not late:
            late += filter(None, [why_few(reply.stats, names["draft"])])
    for text in late:
        note(text)
    if reply.finish_reason is FinishReason.CANCELLED:
        return CANCELLED
    if reply.unmatched:
        cut = reply.finish_reason is FinishReason.LENGTH
        hint = "allow more tokens: -n, --context" if cut else "say in the prompt how the answer must look"
        raise LocalspecError(reply.unmatched, hint=hint)
    return 0


def show(events: Iterator[Event], *, quiet: bool) -> tuple[Reply, list[str]]:
    """Print text as it comes; reasoning goes to stderr, so that stdout holds the answer alone.

    Notices that come late follow the numbers: why drafting is off is then the last line.
    """
    written, late = "\n", list[str]()
    for event in reading_shown(events):
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
                return reply, [text for text in late if text != reply.unmatched]
    raise AssertionError("a run ends with Finished")


def reading_shown(events: Iterator[Event]) -> Iterator[Event]:
    """The same events; a terminal shows how much of the prompt is read, until the reply begins."""
    with DrawnLine(sys.stderr) as line:
        for event in events:
            match event:
                case Started():
                    line.draw(f"reading the prompt: {event.prompt_tokens - event.reused_tokens:,} tokens")
                case Prefill():
                    line.draw(f"reading the prompt: {event.done:,} of {event.total:,} tokens")
                case _:
                    line.clear()
            yield event


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
    from localspec.options import data_dir

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
    """One line: how fast, and how many guesses the target kept."""
    stats = reply.stats
    parts = [counted(stats.emitted, "token"), f"{stats.tokens_per_second:.1f} tokens/s"]
    if stats.drafted:
        parts.append(f"{stats.accepted:,} of {counted(stats.drafted, 'guess', 'guesses')} kept")
        parts.append(f"{stats.mean_accepted_length:.2f} tokens a pass")
    if stats.from_prediction:
        parts.append(f"{counted(stats.from_prediction, 'token')} from the prediction")
    line = "[" + " · ".join(parts) + ENDINGS[reply.finish_reason] + "]"
    if stats.prefill_share < MOSTLY_READING or stats.emitted < 2:
        return line
    read = counted(stats.prompt_tokens - stats.reused_tokens, "token")
    return (
        f"{line}\n{stats.prefill_share:.0%} of this was reading the prompt ({read} "
        f"in {stats.prefill_seconds:.1f} s), where speculation cannot help."
    )


def why_few(stats: Stats, draft: str) -> str:
    """Why nothing or hardly anything was guessed; "" where enough was."""
    few = stats.emitted >= SEVERAL and hardly_drafted(stats)
    if stats.emitted < 2 or not (few or not stats.drafted):
        return ""
    why = "plain decoding is expected to be faster here" if draft else NO_DRAFT
    return f"{'hardly anything' if stats.drafted else 'nothing'} was guessed: {why}"


def report(reply: Reply) -> str:
    """The numbers, a line each, with their meaning."""
    s, share = reply.stats, reply.stats.prefill_share
    read = s.prompt_tokens - s.reused_tokens
    disk = f", {s.restored_tokens:,} of these from the disk in {s.restore_seconds:.3f} s" * bool(
        s.restored_tokens
    )
    by_place = ", ".join(f"{rate:.0%}" for rate in s.acceptance_by_position)
    writers = {"the target": s.from_target, "the draft model": s.from_model, "a head": s.from_head}
    writers |= {"lookup": s.from_lookup, "the prediction": s.from_prediction, "the grammar": s.from_grammar}
    rows = [
        (
            "prompt",
            counted(s.prompt_tokens, "token"),
            f"{read:,} read, {s.reused_tokens:,} in the cache{disk}",
        ),
        ("reading", f"{s.prefill_seconds:.3f} s", f"{share:.0%} of the time; drafting cannot speed it up"),
        ("first token", f"{s.first_token_seconds:.3f} s", "after the request"),
        ("writing", f"{s.decode_seconds:.3f} s", f"{1 - share:.0%} of the time:"),
        (
            "  draft",
            f"{s.draft_seconds:.3f} s",
            f"guessing; {s.draft_reading_seconds:.3f} s to read the text",
        ),
        ("  verify", f"{s.verify_seconds:.3f} s", "the target"),
        ("  other", f"{s.other_seconds:.3f} s", "everything else"),
        ("reply", counted(s.emitted, "token"), f"in {counted(s.cycles, 'pass', 'passes')} of the target"),
        ("speed", f"{s.tokens_per_second:.1f} tokens/s", "tokens of the reply / seconds of writing"),
        ("a pass", f"{s.mean_accepted_length:.2f} tokens", "mean accepted length; plain decoding: 1"),
        ("guesses", f"{s.drafted:,}", f"{s.accepted:,} kept: an acceptance rate of {s.acceptance_rate:.0%}"),
        ("  by place", by_place, "of the first guesses of a pass, of the second, ..."),
        ("written by", "", ", ".join(f"{who} {count:,}" for who, count in writers.items() if count)),
        ("end", reply.finish_reason, ""),
        ("seed", str(reply.seed), ""),
    ]
    return aligned([row for row in rows if row[1] or row[0] == "written by"], left=3)
