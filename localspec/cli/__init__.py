"""The command line: one file for each command; this one joins them and turns errors into sentences."""

import io
import logging
import os
import sys
from collections.abc import Sequence

import localspec
from localspec.cli import commands
from localspec.cli.printing import say
from localspec.cli.usage import Parser, WrongUsage
from localspec.errors import LocalspecError

WRONG_USAGE = 2  # what argparse and most commands end with
CANCELLED = 130  # what a shell expects after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C."""
    _prepare_output()
    try:
        code = _outcome(arguments)
        print(end="", flush=True)
        return code
    except BrokenPipeError:  # the reader went away (`| head`)
        _drop_output()
        return 1
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_output()
        tell(
            LocalspecError(
                f"the output cannot be written: {error.strerror or error}",
                hint="make room, or send it elsewhere",
            )
        )
        return 1


def _outcome(arguments: Sequence[str] | None) -> int:
    try:
        return _run(arguments)
    except LocalspecError as error:
        tell(error)
        return WRONG_USAGE if isinstance(error, WrongUsage) else 1
    except KeyboardInterrupt:
        return CANCELLED


def _run(arguments: Sequence[str] | None) -> int:
    try:
        parsed = parser().parse_args(arguments)
    except SystemExit:  # --help and --version end so; a mistake does not, see Parser
        return 0
    code: int = parsed.run(parsed)
    return code


def _prepare_output() -> None:
    """No character that a terminal lacks ends a command; what the library logs reads like other notes."""
    logging.basicConfig(format="note: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Let what is still buffered go nowhere, so that flushing at exit does not complain a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> Parser:
    """The parser of all commands; building it imports nothing heavy."""
    root = Parser(
        prog="localspec", description=localspec.__doc__.splitlines()[0] if localspec.__doc__ else None
    )
    root.add_argument("--version", action="version", version=f"localspec {localspec.__version__}")
    subparsers = root.add_subparsers(title="commands", required=True, dest="command", metavar="COMMAND")
    for command in commands.ALL:
        command.add_parser(subparsers)
    return root


def tell(error: LocalspecError) -> None:
    """One sentence and a hint on stderr."""
    say(f"error: {error}", to=sys.stderr)
    if error.hint:
        say(f"hint: {error.hint}", to=sys.stderr)
