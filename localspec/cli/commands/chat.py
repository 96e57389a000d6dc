"""Chat with a pair in the terminal, and watch which draft tokens are accepted. F1 shows all keys."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.loading import load_request
from localspec.cli.options import add_pair_argument, add_reply_options, pair_of, reply_options
from localspec.display import obeys_sequences, on_terminal, print_notice, say
from localspec.errors import BadSetting
from localspec.options import configured, data_dir

if TYPE_CHECKING:
    from localspec.conversations.conversations import Conversation, ListedConversation
    from localspec.files import FileLock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    add_reply_options(parser)
    add = parser.add_argument_group("conversation").add_argument
    which = "resume this conversation (default: the last one)"
    add("--resume", nargs="?", const="", metavar="ID", help=which)
    add("-c", "--continue", dest="resume", action="store_const", const="", help="the same as --resume")
    what = "store neither the conversation nor its prompts"
    add("--no-store", dest="store", action="store_false", help=what)
    what = "read and write plain lines, for screen readers and pipes; TERM=dumb does the same"
    add("--plain", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> int:
    on_terminals = on_terminal(sys.stdin) and on_terminal(sys.stdout)
    if not (arguments.plain or on_terminals):
        hint = "use `localspec chat --plain`, which reads and writes lines"
        raise BadSetting("chat needs a terminal", hint=hint)
    arguments.plain |= not obeys_sequences(sys.stdout)
    # Lock the conversation before loading a model, because another terminal may have it open.
    with nullcontext() if arguments.resume is None else resumed(arguments) as held:
        return _chat(arguments, held)


@contextmanager
def resumed(arguments: argparse.Namespace) -> "Iterator[tuple[FileLock, Conversation]]":
    """Yield the lock and the conversation of --resume. Raises StoreFailed, ConversationInUse, BadSetting."""
    from localspec.conversations import conversations

    lock, talk = conversations.resume(data_dir(), conversations.find(data_dir(), arguments.resume))
    try:
        yield lock, talk if arguments.system is None else replace(talk, system=arguments.system)
    finally:
        lock.release()


def _chat(arguments: argparse.Namespace, held: "tuple[FileLock, Conversation] | None") -> int:
    from localspec.engine.client import EngineProcess

    if held:
        take_pair_of(held[1].pair, held[1].files, arguments)
    load = load_request(arguments, leave_missing=True)  # the chat itself offers to download a missing pair
    load = replace(load, draws=not arguments.plain)
    settings, given = reply_settings(arguments), configured(system=arguments.system)
    with closing(EngineProcess()) as engine:
        engine.start()
        engine.send(load)
        # Import Textual while the engine process starts, because both are slow.
        from localspec.tui.state.chat import Setup

        if arguments.plain:
            from localspec.tui.plain import chat
        else:
            from localspec.tui.app import chat

        setup = Setup(
            engine=engine,
            folder=data_dir(),
            load=load,
            settings=settings,
            stops_loops=given.get("stop_loops", True),
            system=given.get("system", load.pair.own_options.get("system", "")),
            resumed=held,
            stored=arguments.store,
            pull=arguments.pull,
        )
        before = latest()
        code = int(chat(setup))
        if arguments.store and (last := latest()) and last != before:
            say(f"Continue with: localspec --resume {last[0].name}")
        return code


def latest() -> "list[ListedConversation]":
    """Return the latest stored conversation in a list; an empty list if there is none or it cannot be read."""
    from localspec.conversations.conversations import listing
    from localspec.conversations.database import StoreFailed

    with suppress(StoreFailed):
        return listing(data_dir(), most=1)
    return []


def take_pair_of(resumed_pair: str, files: tuple[str, ...], arguments: argparse.Namespace) -> None:
    """Use the pair or files of a resumed conversation, unless they are missing or the user has named a pair."""
    from localspec.models.registry import is_known

    if resumed_pair and not (arguments.target or pair_of(arguments)):
        if files and all(Path(file).is_file() for file in files):
            arguments.target, *draft = files
            arguments.draft = arguments.draft or next(iter(draft), None)
        elif is_known(resumed_pair):
            arguments.pair = resumed_pair
        else:
            why = f"whose file {files[0]} is missing" if files else "which is not a known pair"
            print_notice(f"the conversation was with {resumed_pair}, {why}; another pair continues it")


def reply_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of replies, without the conversation's system prompt. Raises BadSetting."""
    options = reply_options(arguments)
    options.pop("system", None)
    return options | ({"speculate": False} if arguments.no_draft else {})
