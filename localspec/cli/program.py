"""Joins the commands, one file for each, and turns errors into sentences."""

import contextlib
import io
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile

import localspec
from localspec.cli import commands
from localspec.cli.commands import completion
from localspec.cli.options import WRONG_USAGE, Parser, did_you_mean
from localspec.cli.prompt import is_pair, something_is_piped
from localspec.display import NotesOfLibraries, OutputFailed, note, on_terminal, printable, quietly, say, tell
from localspec.engine.spawn import take_early
from localspec.errors import BadSetting, LocalspecError, UnknownPair
from localspec.options import naming_settings


def run(arguments: Sequence[str]) -> int:
    """Run one command and print its errors; returns the exit code."""
    _prepare_output()
    try:
        try:
            code = _run(arguments)
        finally:
            if engine := take_early():  # that no command took
                with engine:
                    engine.kill()
        say("", end="")  # what argparse printed goes out too
        return code
    except BrokenPipeError:  # the reader went away (`| head`)
        _drop_output()
    except LocalspecError as error:
        if isinstance(error, OutputFailed):
            _drop_output()
        tell(error)
        return WRONG_USAGE if isinstance(error, BadSetting | UnknownPair) else 1
    except OSError as error:
        from localspec.cli.last_defence import refused_by_system

        tell(refused_by_system(error))
    except Exception as error:  # noqa: BLE001  the last line of defence: a sentence and a file, never a traceback
        from localspec.cli.last_defence import reported

        tell(reported(error, arguments))
    return 1


def _run(arguments: Sequence[str]) -> int:
    if completion.ASKED in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser())  # ends the process
    arguments = _spelled_out(arguments)
    try:
        parsed = parser(arguments[0]).parse_args(arguments)
    except SystemExit:  # --help and --version end so; a mistake does not, see Parser
        return 0
    with quietly(vars(parsed).get("quiet", False)), naming_settings():
        code: int = parsed.run(parsed)
    return code


def _spelled_out(arguments: Sequence[str]) -> Sequence[str]:
    """Handle `help COMMAND`, no arguments (the chat on a terminal), and a prompt without a command."""
    if not arguments:
        if on_terminal(sys.stdin) and on_terminal(sys.stdout):
            return ["chat"]
        if something_is_piped():
            note("`localspec run -` answers piped text, and `localspec run PROMPT` reads it after a prompt")
        return ["--help"]
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    command = arguments[0]
    if command.partition("=")[0] == "--resume":
        return ["chat", *arguments]
    if " " in command.strip():
        return ["run", *arguments]
    if command.startswith("-") and command not in ("-h", "--help", "-V", "--version"):
        line = printable(shlex.join(arguments), 60)
        hint = f"put a command before it: `localspec chat {line}`, or `localspec run {line}` with a prompt"
        raise BadSetting(f"{command} stands where a command should", hint=hint)
    known = (*commands.HELP, "help")
    if command not in known and not command.startswith("-"):
        raise BadSetting(f"there is no command called {command}", hint=_meant(arguments, known))
    if command == "pairs" and arguments[1:] and arguments[1] != "add" and not arguments[1].startswith("-"):
        return ["pairs", "--like", *arguments[1:]]
    return arguments


def _meant(words: Sequence[str], known: Sequence[str]) -> str:
    """A hint about a first word that is no command: the nearest command, the pair that it names, or a prompt."""
    from localspec.models.registry import near_names

    if is_pair(words[0]):
        return f"`localspec run {words[0]} PROMPT` asks it; `localspec chat {words[0]}` opens the chat"
    near = did_you_mean(words[0], known)
    if not near and (pairs := near_names(words[0])):
        return f"`localspec run {pairs[0]} PROMPT` asks the pair of that name"
    prompt = printable(" ".join(takewhile(lambda word: not word.startswith("-"), words)), 60)
    return f'{near}`localspec --help` lists all commands; `localspec run "{prompt}"` takes it as a prompt'


def _prepare_output() -> None:
    """Characters that a terminal lacks end no command; logs of libraries become notes."""
    if sys.stderr is None:  # closed: its text must reach neither stdout nor the next file that is opened
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  until the end
    logging.basicConfig(handlers=[NotesOfLibraries()])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Discard buffered output, so that flushing at exit does not fail a second time."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no stdout, or one of a Python program
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser(command: str = "") -> Parser:
    """The parser that knows the arguments of one command, of all for "", and of none for another word."""
    root = Parser(prog="localspec", description=(localspec.__doc__ or "").partition("\n")[0])
    root.epilog = (
        "A pair is a target model and a small draft model that guesses for it. Without a command the chat opens. "
        'A prompt of several words, in quotes, is answered: localspec "Hello there".'
    )
    root.add_argument("-V", "--version", action="version", version=f"localspec {localspec.__version__}")
    subparsers = root.add_subparsers(title="commands", required=True, dest="command", metavar="COMMAND")
    for name, what in commands.HELP.items():
        of_command = subparsers.add_parser(name, help=what)
        if command in (name, ""):
            module = import_module(f"{commands.__name__}.{name}")
            of_command.description = module.__doc__
            of_command.set_defaults(run=module.run)
            module.add_arguments(of_command)
    about = subparsers.add_parser("help", help="explain a command")  # is spelled out before it is parsed
    about.add_argument("about", nargs="*", metavar="COMMAND", help="the command, and its action")
    return root
