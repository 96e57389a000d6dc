"""Answer one prompt: the text streams to stdout, numbers and notices go to stderr. On a terminal, a pair without a
prompt opens the chat, and a prompt is stored on disk with its reply and prompt caches. --no-store prevents that.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from localspec.cli import CANCELLED
from localspec.cli.commands import chat
from localspec.cli.loading import names_of, open_engine_session, stop_on_interrupt
from localspec.cli.options import add_pair_options, add_quiet_option, add_reply_options, reply_options
from localspec.cli.prompt import add_prompt_argument, images_of, prompt_of, something_is_piped, take_pair
from localspec.display import (
    DrawnLine,
    aligned,
    counted,
    on_terminal,
    print_notice,
    say,
    say_dimmed,
    say_json,
)
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Event, Finished, FinishReason, Kind, Notice, Piece, Prefill, Reply, Started
from localspec.files import text_of
from localspec.options import configured, data_dir

if TYPE_CHECKING:
    from localspec.conversations.conversations import Conversation
    from localspec.prompt.messages import Message

ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: " · cut at the token limit",
    FinishReason.CANCELLED: " · stopped",
    FinishReason.REPETITION: " · ended in a loop",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_argument(parser)
    add_pair_options(parser)
    add_reply_options(parser)
    add = parser.add_argument_group("conversation").add_argument
    last = "resume the last conversation"
    add("-c", "--continue", dest="resume", action="store_const", const="", help=last)
    add("--conversation", dest="resume", metavar="ID", help="resume this conversation")
    store = "store the conversation and its caches on disk (default: on a terminal, or if it is resumed)"
    add("--store", action=argparse.BooleanOptionalAction, help=store)
    what = "add an image to the prompt; may be repeated"
    parser.add_argument("--image", action="append", default=[], metavar="FILE", help=what)
    what = "draft from this text, a prediction of the reply, for example a file to edit"
    parser.add_argument("--predict", metavar="FILE", help=what)
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--raw", action="store_true", help="continue the text as it is, without chat template")
    add("--json", action="store_true", help="print one JSON object with text and stats at the end")
    add_quiet_option(group)
    add("--stats", action="store_true", help="print all numbers of the run to stderr")


def run(arguments: argparse.Namespace) -> int:
    take_pair(arguments)
    has_prompt = arguments.words or arguments.file or arguments.image or something_is_piped()
    if arguments.name and not has_prompt and on_terminal(sys.stdin) and on_terminal(sys.stdout):
        parser = argparse.ArgumentParser()
        chat.add_arguments(parser)
        return chat.run(parser.parse_args([arguments.name], argparse.Namespace(command="chat")))
    think = "" if arguments.think is None else "--no-think" if arguments.think is False else "--think"
    if arguments.raw and (flag := "--system" if arguments.system is not None else think):
        what = f"{flag} needs the model's chat template, which --raw leaves out"
        raise BadSetting(what, hint=f"leave out --raw or {flag}")
    if arguments.raw and arguments.image:
        raise BadSetting("--raw continues a text and takes no image", hint="leave out --raw or --image")
    images = images_of(arguments)
    options, prompt = reply_options(arguments), prompt_of(arguments)
    if arguments.predict is not None:
        options["prediction"] = text_of(arguments.predict)
    with prompt_conversation(arguments) as (talk, stored):
        if talk.messages:
            options = {"system": talk.system or None} | options
            chat.take_pair_of(talk.pair, talk.files, arguments)
        if not (images or any(m.images for m in talk.messages)):
            arguments.mmproj = "none"  # load no projector, because that takes seconds
        with open_engine_session(arguments) as session, stop_on_interrupt(session):
            if talk.messages:
                from localspec.prompt.messages import Message

                session.resume(Message(m.role, m.content, images=m.images) for m in talk.messages)
            session.conversation = talk.name if stored else ""
            session.stops_loops = stops_loops(options)
            names = names_of(session)
            if arguments.raw:
                events = session.stream_complete(prompt, **options)
            else:
                events = session.stream(prompt, images, **options)
            reply, late = show(events, quiet=arguments.json)
            if arguments.json:
                say_json({**names, **as_json(reply)}, ensure_ascii=False)
            if stored and reply.tokens:
                talk = replace(talk, pair=session.name, files=session.files)
                from localspec.prompt.messages import with_images

                store(talk, with_images(prompt, images), reply, requested=arguments.store is True)
    if arguments.stats or not (arguments.json or arguments.quiet):
        say(report(reply) if arguments.stats else summary(reply, session.called), to=sys.stderr)
        late = late or why_not_drafted(reply, arguments, names["draft"])
    for text in late:
        print_notice(text)
    if reply.finish_reason is FinishReason.CANCELLED:
        return CANCELLED
    if reply.unmatched:
        cut = reply.finish_reason is FinishReason.LENGTH
        hint = "allow more tokens: -n, --context" if cut else "describe the form of the answer in the prompt"
        raise LocalspecError(reply.unmatched, hint=hint)
    return 0


def why_not_drafted(reply: Reply, arguments: argparse.Namespace, draft: str) -> list[str]:
    """Return a notice if hardly anything was drafted in a reply that is not short; `draft`: the draft's name."""
    drafts = not arguments.no_draft and configured(depth=arguments.depth).get("depth") != 0
    if not drafts or reply.stats.emitted < 16 or not reply.stats.hardly_drafted:
        return []
    from localspec.chat.loaded_pair import NO_DRAFT  # imported only where it is needed, because it is slow

    why = "plain decoding is expected to be faster here" if draft else NO_DRAFT
    hint = "" if draft or arguments.draft else " (add a draft model with --draft FILE)"
    return [f"almost nothing was drafted: {why}{hint}"]


def stops_loops(options: dict[str, Any]) -> bool:
    """Return whether to end a reply that repeats itself: yes, unless the user has limited or fixed the text."""
    given = configured() | options
    fixed = {"json_schema", "regex", "grammar", "seed", "max_tokens"} & given.keys()
    return not fixed and bool(given.get("stop_loops", True))


def show(events: Iterator[Event], *, quiet: bool) -> tuple[Reply, list[str]]:
    """Print the answer on stdout and the reasoning on stderr as they arrive, and notices before the answer.

    Return the reply, and the later notices for the caller to print after the numbers.
    """
    written, late = "\n", list[str]()
    with DrawnLine(sys.stderr) as line:
        for event in events:
            match event:
                case Started():
                    line.draw(f"reading the prompt: {event.prompt_tokens - event.reused_tokens:,} tokens")
                    continue
                case Prefill(image_tokens=count) if count:
                    line.draw(f"encoding an image: {count:,} tokens")
                    continue
                case Prefill():
                    line.draw(f"reading the prompt: {event.done:,} of {event.total:,} tokens")
                    continue
            line.clear()
            match event:
                case Piece(text=text, kind=Kind.ANSWER):
                    if not quiet:
                        say(text, end="")
                    written = text
                case Piece(text=text, kind=Kind.REASONING) if not quiet:
                    say_dimmed(text)
                case Notice(text=text) if written == "\n":
                    print_notice(text)
                case Notice(text=text):
                    late.append(text)
                case Finished(reply=reply):
                    if not quiet and not written.endswith("\n"):
                        say("")
                    return reply, [text for text in late if text != reply.unmatched]
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
def prompt_conversation(arguments: argparse.Namespace) -> "Iterator[tuple[Conversation, bool]]":
    """Yield the new conversation, or the resumed one with its lock held, and whether to store it.

    Raises StoreFailed, ConversationInUse, BadSetting.
    """
    from localspec.conversations.conversations import Conversation

    stored = on_terminal(sys.stdout) if arguments.store is None else arguments.store
    if arguments.resume is None:
        system = configured(system=arguments.system).get("system", "")
        yield Conversation.new(system=system), stored and not arguments.raw
        return
    if arguments.raw:
        flag = "--conversation" if arguments.resume else "--continue"
        raise BadSetting("--raw cannot resume a conversation", hint=f"leave out --raw or {flag}")
    with chat.resumed(arguments) as (_, talk):
        yield talk, arguments.store is not False


def store(talk: "Conversation", prompt: "Message", reply: Reply, *, requested: bool) -> None:
    """Append a prompt and its reply to the stored conversation.

    `requested`: whether a failure raises LocalspecError; if not, it only prints a notice, even with --quiet.
    """
    from localspec.conversations.conversations import StoredMessage, save

    answer = (reply.text, reply.reasoning, reply.reasoning_tokens, reply.finish_reason.value, reply.stats)
    asked = StoredMessage("user", prompt.content, images=prompt.images)
    added = asked, StoredMessage("assistant", *answer, talk.pair)
    talk = replace(talk, messages=(*talk.messages, *added), talked=time.time(), course_of="")
    try:
        save(data_dir(), talk)
    except OSError as error:
        what = f"the conversation is not stored: {error.strerror or error}"
        if requested:
            raise LocalspecError(what, hint="free disk space, or set LOCALSPEC_HOME elsewhere") from error
        say(f"notice: {what}", to=sys.stderr)


def summary(reply: Reply, name: str) -> str:
    """Return the line of numbers; `name`: the name of the pair that answered."""
    stats = reply.stats
    speed = [f"{stats.tokens_per_second:.1f} tokens/s"] * bool(stats.emitted)
    parts = [name, counted(stats.emitted, "token"), *speed]
    if stats.drafted:
        parts.append(f"{stats.accepted:,} of {counted(stats.drafted, 'draft token')} accepted")
        parts.append(f"{stats.mean_accepted_length:.2f} tokens per pass")
    if stats.from_prediction:
        parts.append(f"{counted(stats.from_prediction, 'token')} from the prediction")
    parts += ["thinking cut"] * stats.thinking_cut
    return "[" + " · ".join(parts) + ENDINGS[reply.finish_reason] + "]"


def report(reply: Reply) -> str:
    s, share = reply.stats, reply.stats.prefill_share
    read = s.prompt_tokens - s.reused_tokens
    cached = f"{s.reused_tokens:,} in the cache"
    if s.restored_tokens:
        cached += f", {s.restored_tokens:,} of these from the disk in {s.restore_seconds:.3f} s"
    if s.read_ahead_tokens:
        cached += f", {s.read_ahead_tokens:,} of these read ahead"
    by_place = ", ".join(f"{rate:.0%}" for rate in s.acceptance_by_position)
    writers = {"the target": s.from_target, "the draft model": s.from_model, "a head": s.from_head}
    writers |= {"lookup": s.from_lookup, "the prediction": s.from_prediction, "the grammar": s.from_grammar}
    rows = [
        ("prompt", counted(s.prompt_tokens, "token"), f"{read:,} prefilled, {cached}"),
        ("prefill", f"{s.prefill_seconds:.3f} s", f"{share:.0%} of the time; drafting cannot speed it up"),
        ("first token", f"{s.first_token_seconds:.3f} s", "after the request"),
        ("decode", f"{s.decode_seconds:.3f} s", f"{1 - share:.0%} of the time:"),
        ("  draft", f"{s.draft_seconds:.3f} s", f"drafting; {s.draft_prefill_seconds:.3f} s of prefill"),
        ("  verify", f"{s.verify_seconds:.3f} s", "the target"),
        ("  other", f"{s.other_seconds:.3f} s", "everything else"),
        ("reply", counted(s.emitted, "token"), f"in {counted(s.cycles, 'pass', 'passes')} of the target"),
        ("speed", f"{s.tokens_per_second:.1f} tokens/s", "tokens of the reply / seconds of decoding"),
        ("tokens per pass", f"{s.mean_accepted_length:.2f}", "mean accepted length; plain decoding: 1"),
        (
            "draft tokens",
            f"{s.drafted:,}",
            f"{s.accepted:,} accepted, acceptance rate {s.acceptance_rate:.0%}",
        ),
        ("  by depth", "", by_place),
        ("written by", "", ", ".join(f"{who} {count:,}" for who, count in writers.items() if count)),
        ("end", reply.finish_reason, "thinking cut" * s.thinking_cut),
        ("seed", str(reply.seed), ""),
    ]
    return aligned([row for row in rows if any(row[1:])], left=3)
