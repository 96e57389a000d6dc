"""Writes docs/commands.md from the parser: `python -m tools.commands`; a test compares the two."""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from localspec.cli.program import parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
_HEAD = """\
# Commands

`python -m tools.commands` writes this page from the parser. `localspec help COMMAND` says more about each.

`localspec` alone opens the chat on a terminal, and prints the help elsewhere. `localspec "several words"`
is `localspec run`.

## Exit codes

| code | meaning |
|---|---|
| 0 | it worked |
| 1 | it failed: too little memory, no network, a damaged file, an answer that was cut inside its JSON |
| 2 | what you typed or set is wrong: an unknown option, pair or file, a bad value, a mistake in `config.toml` |
| 3 | `verify` found a difference |
| 130 | you stopped it with Ctrl-C |

[Options that several commands share](#shared-options) stand at the end.
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
        [*texts, "## Shared options\n", *(_list(f"### {names}\n", rows) for names, rows in groups.items())]
    )


def _commands(root: argparse.ArgumentParser, prefix: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield f"{prefix}{name}", command
                yield from _commands(command, f"{prefix}{name} ")


def _section(name: str, command: argparse.ArgumentParser, shared: dict[str, list[str]]) -> str:
    shown = [action for action in command._actions if action.help != argparse.SUPPRESS]
    words = [_words(action) for action in shown if not action.option_strings]
    text = f"## localspec {' '.join([name, *filter(None, words)])}\n"
    if command.description:
        text += f"\n{re.split(r'(?<=[.]) ', ' '.join(command.description.split()))[0]}\n"
    rows = [row for row in _rows(command) if row not in shared]
    return _list(text, rows) if rows else text


def _list(head: str, rows: list[str]) -> str:
    return "\n".join([head, *rows, ""])


def _rows(command: argparse.ArgumentParser) -> list[str]:
    return [
        f"- {_named(action)}: {' '.join((action.help or '').split())}".rstrip()
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
    if action.nargs == "?":
        value = f" [{action.metavar}]"
    *others, last = action.option_strings or [str(action.metavar or action.dest)]
    return ", ".join(f"`{name}`" for name in [*others, f"{last}{value if action.option_strings else ''}"])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
