"""The prompt of a command: its argument, what is piped in, or both."""

import argparse
import io
import os
import stat
import sys
import threading

from localspec.cli.printing import note
from localspec.errors import BadSetting

PATIENCE_SECONDS = 2.0
_EXAMPLE = 'localspec run "What is speculative decoding?"'


def add_prompt_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="the prompt, which piped text follows; - is the piped text alone",
    )


def prompt_of(arguments: argparse.Namespace) -> str:
    """The argument, and after an empty line the text that is piped in. Raises BadSetting for no prompt."""
    argument: str | None = arguments.prompt
    if argument is None or argument == "-":
        if sys.stdin is None or (argument is None and sys.stdin.isatty()):
            raise BadSetting("there is no prompt", hint=_EXAMPLE)
        parts = [piped_text()]
    else:
        parts = [argument, piped_text() if something_is_piped() else ""]
    prompt = "\n\n".join(part for part in parts if part.strip())
    if not prompt:
        raise BadSetting("the prompt is empty", hint=_EXAMPLE)
    return prompt


def something_is_piped() -> bool:
    """Whether standard input is a pipe, a socket or a file; a terminal or /dev/null is none of them."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # closed, or replaced by a Python program
        return False


def piped_text() -> str:
    """All of standard input; says after a moment what it waits for, as a pipe can stay open and empty."""
    waiting = threading.Timer(PATIENCE_SECONDS, tell_waiting)
    waiting.daemon = True
    waiting.start()
    try:
        return standard_input()
    except UnicodeError as error:
        raise BadSetting("standard input is not UTF-8 text", hint="pipe a text file into it") from error
    finally:
        waiting.cancel()


def standard_input() -> str:
    """All of standard input as UTF-8, whatever the system's own encoding is. Raises UnicodeError."""
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:  # replaced by a Python program
        return sys.stdin.read()
    return io.StringIO(buffer.read().decode("utf-8"), newline=None).read()


def tell_waiting() -> None:
    note("reading standard input until it ends; `</dev/null` leaves it out")
