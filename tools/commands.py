"""Writes docs/commands.md from the parser: `python -m tools.commands`; a test compares the two."""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from localspec.cli.program import parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
_HEAD = """\
# Commands

`python -m tools.commands` writes this page from the parser. `localspec help COMMAND` prints the same.

`localspec` alone opens the chat on a terminal, and prints the help elsewhere. `localspec "a prompt"` is
`localspec run`.

Exit codes: 0; 1 after an error; 2 for wrong usage; 3 if `verify` found a difference; 130 after Ctrl-C.

Options that several commands share stand at the end.
"""
_LEFT_OUT = ("-h", "--help")
_SHARED = 3  # commands with an option, from which on it stands at the end


def page() -> str:
    commands = list(_commands(parser(), ""))
    users = defaultdict(list)
    for name, command in commands:
        for row in _rows(command):
            users[row].append(name)
    shared = {row: names for row, names in users.items() if len(names) >= _SHARED}
    texts = [_HEAD, *(_section(name, command, shared) for name, command in commands)]
    groups = defaultdict(list)
    for row, names in shared.items():
        groups[", ".join(names)].append(row)
    return "\n".join(
        [*texts, "## Shared options\n", *(_table(f"### {names}\n", rows) for names, rows in groups.items())]
    )


def _commands(root: argparse.ArgumentParser, prefix: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield f"{prefix}{name}", command
                yield from _commands(command, f"{prefix}{name} ")


def _section(name: str, command: argparse.ArgumentParser, shared: dict[str, list[str]]) -> str:
    words = [_words(action) for action in command._actions if not action.option_strings]
    text = f"## localspec {' '.join([name, *filter(None, words)])}\n"
    if command.description:
        text += f"\n{' '.join(command.description.split())}\n"
    rows = [row for row in _rows(command) if row not in shared]
    return _table(text, rows) if rows else text


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "| argument | meaning |\n|---|---|", *rows, ""])


def _rows(command: argparse.ArgumentParser) -> list[str]:
    return [
        f"| {_named(action)} | {_cell(action.help or '')} |"
        for action in command._actions
        if not isinstance(action, argparse._SubParsersAction)
        and not set(_LEFT_OUT) & set(action.option_strings)
        and action.help != argparse.SUPPRESS
    ]


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
