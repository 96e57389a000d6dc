"""Open the terminal UI: chat with a pair and watch speculation at work. F1 in it shows all keys."""

import argparse
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.options import (
    add_pair_argument,
    add_reply_options,
    pair_of,
    reply_options,
)
from localspec.display import note, obeys_sequences, on_terminal
from localspec.errors import BadSetting, NotOnDisk

if TYPE_CHECKING:
    from localspec.chat.conversations import Conversation, Journal
    from localspec.engine.messages import LoadPair

CONVERSATIONS = "conversations"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    add_reply_options(parser)
    add = parser.add_argument_group("conversation").add_argument
    which = "resume this conversation (default: the last one)"
    add("--resume", nargs="?", const="", metavar="ID", help=which)
    add("-c", "--continue", dest="resume", action="store_const", const="", help="the same as --resume")
    add("--no-store", action="store_true", help="store neither the conversation nor its prompts")
    add(
        "--plain",
        action="store_true",
        help="read and write lines, as for TERM=dumb: for screen readers and pipes",
    )


def run(arguments: argparse.Namespace) -> int:
    from localspec.chat import conversations
    from localspec.options import data_dir

    on_terminals = on_terminal(sys.stdin) and on_terminal(sys.stdout)
    if not (arguments.plain or on_terminals):
        raise BadSetting(
            "chat needs a terminal", hint="use `localspec chat --plain`, which reads and writes lines"
        )
    arguments.plain |= not obeys_sequences(sys.stdout)
    folder = data_dir()
    if arguments.resume is None:
        return _chat(arguments, folder, None)
    # Held before a model is loaded: another terminal may have it.
    resumed = conversations.resume(conversations.find(folder / CONVERSATIONS, arguments.resume).path)
    with closing(resumed[0]):
        return _chat(arguments, folder, resumed)


def run_with(pair: str) -> int:
    """Open the chat with a pair and nothing else asked for."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([pair], argparse.Namespace(command="chat")))


def _chat(arguments: argparse.Namespace, folder: Path, resumed: "tuple[Journal, Conversation] | None") -> int:
    from localspec.engine.client import EngineProcess
    from localspec.models.names import asked_as, find
    from localspec.options import configured

    load = load_request(arguments, *((resumed[1].pair, resumed[1].files) if resumed else ("",)))
    with suppress(NotOnDisk):  # the chat offers to fetch it
        found = find(load.pair, load.target, load.draft if load.speculate else "lookup")
        if load.pair is None and load.target is None:
            load = replace(load, **asked_as(found))
    if resumed and arguments.system is not None:
        resumed[0].system = arguments.system
    settings = reply_settings(arguments)
    engine = EngineProcess()
    engine.start()
    engine.send(load)
    try:
        # Textual takes longer to import than the engine process to start: both happen at once.
        from localspec.tui.state.chat import Setup

        if arguments.plain:
            from localspec.tui.plain import chat
        else:
            from localspec.tui.app import chat

        setup = Setup(
            engine=engine,
            folder=folder,
            load=load,
            settings=settings,
            system=configured(system=arguments.system).get("system", ""),
            resumed=resumed,
            stored=not arguments.no_store,
            pull=arguments.pull,
        )
        return int(chat(setup))
    finally:
        engine.close()


def load_request(arguments: argparse.Namespace, resumed_pair: str, files: tuple[str, ...] = ()) -> "LoadPair":
    """The load request: the named pair, else the resumed conversation's, else the configured one.

    The chat fetches it. Raises BadSetting.
    """
    from localspec.cli.loading import wanted
    from localspec.engine.messages import LoadPair

    take_pair_of(resumed_pair, files, arguments)
    return LoadPair.of(**wanted(arguments, **({"cache_gb": 0} if arguments.no_store else {})))


def take_pair_of(resumed_pair: str, files: tuple[str, ...], arguments: argparse.Namespace) -> None:
    """Use the pair or the files of a resumed conversation if no other is named and they are here."""
    from localspec.models.registry import is_known

    if resumed_pair and not (arguments.target or pair_of(arguments)):
        if is_known(resumed_pair):
            arguments.pair = resumed_pair
        elif files and all(Path(file).is_file() for file in files):
            arguments.target, *draft = files
            arguments.draft = arguments.draft or next(iter(draft), None)
        else:
            why = f"whose file {files[0]} is gone" if files else "which is no known pair"
            note(f"the conversation was with {resumed_pair}, {why}: another one answers")


def reply_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of replies; the system prompt belongs to the conversation. Raises BadSetting."""
    options = reply_options(arguments)
    options.pop("system", None)
    return options | ({"speculate": False} if arguments.no_draft else {})
