"""The program `localspec`: parse the arguments, run a command, and print errors without a traceback."""

import contextlib
import io
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import localspec
from localspec.cli import commands
from localspec.cli.commands import completion
from localspec.cli.options import WRONG_USAGE, Parser, did_you_mean
from localspec.cli.prompt import is_pair, something_is_piped
from localspec.display import (
    LibraryNotices,
    OutputFailed,
    on_terminal,
    print_notice,
    printable,
    quietly,
    say,
    tell,
)
from localspec.engine.spawn import take_early
from localspec.errors import BadSetting, LocalspecError, UnknownPair
from localspec.options import data_dir, naming_settings

# Commands of other programs: the command of localspec that does the same, or an answer.
OTHER_NAMES = {"ls": "list", "show": "info", "remove": "rm"}
ANSWERED = {
    "ps": "Nothing runs in the background: a model is loaded while `localspec run`, `chat` or `serve` runs.",
    "stop": "Nothing runs in the background: Ctrl-C ends `localspec serve`, and Ctrl-Q the chat.",
}
NO_COMMANDS = {
    "create": "a GGUF file needs no import: `localspec chat FILE.gguf`; `localspec pairs add` names a pair",
}


def run(arguments: Sequence[str]) -> int:
    if sys.stderr is None:  # stderr is closed; without this, the next opened file would receive its text
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open until the end
    logging.basicConfig(handlers=[LibraryNotices()])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # replace characters that the terminal lacks
    try:
        try:
            code = _run(arguments)
        finally:
            if engine := take_early():  # the command has not used the engine process
                with engine:
                    engine.kill()
        say("", end="")  # flush the output of argparse
        return code
    except BrokenPipeError:  # the reader of stdout has ended, for example `head`
        _drop_output()
    except LocalspecError as error:
        if isinstance(error, OutputFailed):
            _drop_output()
        tell(error)
        return WRONG_USAGE if isinstance(error, BadSetting | UnknownPair) else 1
    except OSError as error:
        named = error.filename is not None
        what = f"{error.filename} cannot be used" if named else "the operating system reports an error"
        hint = "check permissions and free disk space, or set LOCALSPEC_HOME to another folder"
        tell(LocalspecError(f"{what}: {error.strerror or error}", hint=hint))
    except Exception as error:  # noqa: BLE001  print a message and write a report for any error
        tell(reported(error, arguments))
    return 1


def reported(error: Exception, arguments: Sequence[str]) -> LocalspecError:
    """Write a report about an unexpected error, and return an error that names the file of the report."""
    import tempfile  # imported only here, because it is slow

    message = " ".join(str(error).split())[:200]
    hint = "no report could be written: free disk space, or set LOCALSPEC_HOME to another folder"
    with contextlib.suppress(OSError, LocalspecError):
        folder = data_dir() / "reports"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"localspec-{time.strftime('%Y%m%d-%H%M%S')}-"
        handle, path = tempfile.mkstemp(prefix=name, suffix=".txt", dir=folder)  # readable only by the owner
        os.close(handle)
        Path(path).write_text("\n".join(report_lines(error, arguments)), "utf-8", "replace")
        hint = f"attach {path} to a bug report; this file contains no prompts and no keys"
    what = f"localspec made a mistake: {type(error).__name__}{': ' * bool(message)}{message}"
    return LocalspecError(what, hint=hint)


def report_lines(error: BaseException | None, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the report: versions, the command with its option names, and the stacks of error and causes.

    Values of options and messages of errors are left out, because they may contain a prompt or a key.
    """
    import platform
    import traceback
    from importlib.metadata import PackageNotFoundError, version

    binding = "not installed"
    with contextlib.suppress(PackageNotFoundError):
        binding = version("llama-cpp-python")
    python = f"Python {platform.python_version()}, {platform.platform()}"
    yield f"localspec {localspec.__version__}, llama-cpp-python {binding}, {python}"
    command = [word for word in arguments[:1] if word in commands.HELP]
    flags = [word for word in takewhile("--".__ne__, arguments) if word.startswith("-")]
    named = (flag.partition("=")[0] if flag.startswith("--") else flag[:2] for flag in flags)
    yield " ".join(["localspec", *command, *named])
    while error is not None:
        yield f"{type(error).__name__}, raised in\n{''.join(traceback.format_tb(error.__traceback__))}"
        error = error.__cause__ or error.__context__


def _run(arguments: Sequence[str]) -> int:
    if completion.ASKED in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser())  # if a shell completes, this prints the words and ends the process
    if sentence := ANSWERED.get(next(iter(arguments), "")):
        say(sentence)
        return 0
    arguments = _spelled_out(arguments)
    try:
        parsed = parser(arguments[0]).parse_args(arguments)
    except SystemExit:  # only --help and --version exit; for wrong usage Parser raises BadSetting
        return 0
    with quietly(vars(parsed).get("quiet", False)), naming_settings():
        code: int = parsed.run(parsed)
    return code


def _spelled_out(arguments: Sequence[str]) -> Sequence[str]:
    """Insert the command if the user left it out, and turn `help COMMAND` into `COMMAND --help`."""
    if not arguments:
        if on_terminal(sys.stdin) and on_terminal(sys.stdout):
            return ["chat"]
        if something_is_piped():
            print_notice("`localspec run -` answers piped text; `localspec run PROMPT` adds it to a prompt")
        return ["--help"]
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    arguments = [OTHER_NAMES.get(arguments[0], arguments[0]), *arguments[1:]]
    command = arguments[0]
    if command in NO_COMMANDS:
        raise BadSetting(f"localspec has no command {command}", hint=NO_COMMANDS[command])
    if command.partition("=")[0] == "--resume":
        return ["chat", *arguments]
    if " " in command.strip():
        return ["run", *arguments]
    if command.startswith("-") and command not in ("-h", "--help", "-V", "--version"):
        line = printable(shlex.join(arguments), 60)
        hint = f"put a command before it: `localspec chat {line}`, or `localspec run {line}` with a prompt"
        raise BadSetting(f"{command} is an option, not a command", hint=hint)
    if command not in (*commands.HELP, "help") and not command.startswith("-"):
        raise BadSetting(f"there is no command called {command}", hint=_meant(arguments))
    if command == "pairs" and arguments[1:] and arguments[1] != "add" and not arguments[1].startswith("-"):
        return ["pairs", "--like", *arguments[1:]]
    return arguments


def _meant(words: Sequence[str]) -> str:
    """Return a hint for an unknown command: the nearest command or pair, or how to send the words as a prompt."""
    from localspec.models.registry import near_names

    if is_pair(words[0]):
        return f"put a command first: `localspec run {words[0]} PROMPT`, or `localspec chat {words[0]}`"
    near = did_you_mean(words[0], (*commands.HELP, "help"))
    if not near and (pairs := near_names(words[0])):
        return f"`localspec run {pairs[0]} PROMPT` answers with the pair of that name"
    prompt = printable(" ".join(takewhile(lambda word: not word.startswith("-"), words)), 60)
    return f'{near}`localspec --help` lists all commands; `localspec run "{prompt}"` takes it as a prompt'


def _drop_output() -> None:
    """Discard buffered output, because flushing it at exit would fail a second time."""
    # stdout may be missing, or replaced by a Python program.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser(command: str = "") -> Parser:
    """Return the parser with the arguments of only `command`, for a fast start; "" means all commands."""
    root = Parser(prog="localspec", description=(localspec.__doc__ or "").partition("\n")[0])
    root.epilog = (
        "A pair is a target model and a small draft model that proposes tokens. Without a command the chat opens. "
        'A prompt in quotes is answered at once: localspec "Hello there".'
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
    about = subparsers.add_parser("help", help="explain a command")  # `_spelled_out` turns `help` into --help
    about.add_argument("about", nargs="*", metavar="COMMAND", help="the command, and its action")
    return root
