"""The prompt of a command: its argument, piped text, or both."""

import argparse
import io
import os
import re
import stat
import sys
import threading

from localspec.cli.commands.completion import complete_with_pairs
from localspec.display import note, printable
from localspec.errors import BadSetting
from localspec.files import with_files

PATIENCE_SECONDS = 2.0


def add_prompt_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    named = "[PAIR] [PROMPT]" if optional else "[PAIR] PROMPT"
    what = (
        "the prompt, after a pair if you name one; piped text follows it, and - stands for piped text alone"
    )
    complete_with_pairs(parser.add_argument("words", nargs="*", metavar=named, help=what))
    what = "add a text file to the prompt; may be repeated"
    parser.add_argument("-f", "--file", action="append", default=[], metavar="FILE", help=what)
    parser.set_defaults(name=None)


def take_pair(arguments: argparse.Namespace, *, prompt_optional: bool = False) -> None:
    """Take the first word as the pair where it is the name of one. Raises BadSetting, or UnknownPair, for more words.

    Where a command needs no prompt, a single word is a pair, known or not.
    """
    words: list[str] = arguments.words
    elsewhere = arguments.pair or arguments.target
    if words and (
        (is_pair(words[0]) and (prompt_optional or not elsewhere))
        or (prompt_optional and not elsewhere and len(words[0].split()) == 1 and words[0] != "-")
    ):
        arguments.name, arguments.words = words[0], words[1:]
    if len(arguments.words) > 1:
        from localspec.models.registry import named, near_names

        first, second = words[:2]
        if not (arguments.name or elsewhere) and (" " in second.strip() or near_names(first)):
            named(first)  # raises
        quoted = f'"{printable(" ".join(arguments.words), 60)}"'
        raise BadSetting(
            f"unexpected argument {arguments.words[1]}",
            hint=f"a prompt of several words goes in quotes: {quoted}",
        )


def prompt_of(arguments: argparse.Namespace) -> str:
    """The prompt, then after an empty line the piped text, then the files. Raises BadSetting without a prompt."""
    argument: str | None = next(iter(arguments.words), None)
    if argument == "-":
        parts = ["" if sys.stdin is None else piped_text()]
    else:
        parts = [argument or "", piped_text() if something_is_piped() else ""]
    prompt = with_files("\n\n".join(part for part in parts if part.strip()), arguments.file)
    if not prompt:
        given = argument not in (None, "-") or something_is_piped()
        command = " ".join(filter(None, ["localspec", arguments.command, arguments.name]))
        hint = f'{command} "What is speculative decoding?"'
        raise BadSetting("the prompt is empty" if given else "there is no prompt", hint=hint)
    return prompt


def is_pair(word: str) -> bool:
    """Whether a word is the name of a known pair, a GGUF file, or a model of the Hub."""
    from localspec.models.registry import is_known

    is_one = len(word.split()) == 1 or os.path.isfile(os.path.expanduser(word))
    is_file = word.lower().endswith(".gguf") and is_one
    on_hub = re.fullmatch(r"(?:https?://\S+/)?[\w.-]+/[\w.-]+:\S+", word)
    return is_file or on_hub is not None or is_known(word)


def something_is_piped() -> bool:
    """Whether standard input is a pipe, a socket or a file, not a terminal or /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # closed, or replaced by a Python program
        return False


def piped_text() -> str:
    """All of standard input; after a moment a note says that it waits, because a pipe can stay open and empty."""
    waiting = threading.Timer(
        PATIENCE_SECONDS, note, ["reading standard input until it ends; `</dev/null` leaves it out"]
    )
    waiting.daemon = True
    waiting.start()
    try:
        buffer = getattr(sys.stdin, "buffer", None)
        if buffer is None:  # replaced by a Python program
            return sys.stdin.read()
        # As UTF-8, whatever the system's own encoding is.
        return io.StringIO(buffer.read().decode("utf-8"), newline=None).read()
    except UnicodeError as error:
        raise BadSetting("standard input is not UTF-8 text", hint="pipe a text file into it") from error
    finally:
        waiting.cancel()
