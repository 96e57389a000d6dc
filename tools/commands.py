"""Writes docs/commands.md from the parser: `python -m tools.commands`; a test compares it with the page."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from localspec.cli.program import parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
_HEAD = """\
# Commands

Every command with its arguments, written by `python -m tools.commands` from the parser that reads them.

`localspec` alone opens the chat on a terminal and prints the help elsewhere; `localspec "a prompt"` is `localspec run`.
`localspec help COMMAND` and `COMMAND --help` say on the terminal what stands here.

Exit codes: 0, 1 after an error, 2 for wrong usage, 3 where `verify` found a difference, 130 after Ctrl-C.
"""
_SHARED = ("-h", "--help")


def page() -> str:
    return "\n".join([_HEAD, *_commands(parser(), "localspec")])


def _commands(root: argparse.ArgumentParser, prefix: str) -> Iterator[str]:
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from _command(command, f"{prefix} {name}")


def _command(command: argparse.ArgumentParser, name: str) -> Iterator[str]:
    words = [_words(action) for action in command._actions if not action.option_strings]
    yield f"## {' '.join([name, *filter(None, words)])}\n"
    if command.description:
        yield f"{' '.join(command.description.split())}\n"
    rows = [action for action in command._actions if not isinstance(action, argparse._SubParsersAction)]
    rows = [action for action in rows if not set(_SHARED) & set(action.option_strings)]
    rows = [action for action in rows if action.help != argparse.SUPPRESS]
    if rows:
        yield "| argument | meaning |\n|---|---|"
        yield "\n".join(f"| {_named(action)} | {_cell(action.help or '')} |" for action in rows) + "\n"
    yield from _commands(command, name)


def _words(action: argparse.Action) -> str:
    if isinstance(action, argparse._SubParsersAction):
        return ""
    text = str(action.metavar or action.dest)
    return text if text.startswith("[") or action.nargs is None else f"[{text}]"


def _named(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(map(str, action.choices or ()))}"
    if isinstance(action, argparse.BooleanOptionalAction):
        value = ""
    names = action.option_strings or [str(action.metavar or action.dest)]
    return _cell(", ".join(f"`{name}{value if action.option_strings else ''}`" for name in names))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
