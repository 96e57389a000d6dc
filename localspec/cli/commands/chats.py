"""List stored conversations, the latest first; show or delete one. The beginning of an ID is enough where it is
unique. `localspec chat --resume ID` continues a conversation.
"""

import argparse
import json
import sys
from dataclasses import asdict
from datetime import datetime

from localspec.display import aligned, columns, line_for_terminal, on_terminal, say, say_json
from localspec.options import data_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    like = "list only conversations with these words in messages, title or pair"
    parser.add_argument("--like", default="", metavar="TEXT", help=like)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", prog=parser.prog)
    for name, what, run_action in (
        ("show", "print a conversation as Markdown", run_show),
        ("rm", "delete a conversation, with its caches and the prompts that were typed in it", run_rm),
    ):
        action = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        action.add_argument("id", metavar="ID", help="the ID of a conversation, or its beginning")
        action.add_argument("--json", action="store_true", help="print one JSON object")
        action.set_defaults(run=run_action)


def run(arguments: argparse.Namespace) -> int:
    from localspec.conversations.conversations import listing

    rows = listing(data_dir(), arguments.like)
    if arguments.json:
        say_json({"conversations": [asdict(row) for row in rows]}, indent=2)
    elif rows:
        lines = [("ID", "TALKED", "MESSAGES", "TITLE")]
        for row in rows:
            lines.append((row.name, moment(row.talked), f"{row.count:,}", row.title))
        table = aligned([list(map(line_for_terminal, line)) for line in lines], left=4)
        say(cut_rows(table) if on_terminal(sys.stdout) else table, wrap=False)
    else:
        say("no conversation has these words" if arguments.like else "no conversation is stored")
    return 0


def moment(seconds: object) -> str:
    """Return a time of a stored conversation as text; "-" for an impossible time."""
    try:
        return f"{datetime.fromtimestamp(float(str(seconds))):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "-"


def cut_rows(table: str) -> str:
    """Return a table whose rows are cut at the edge of the terminal, so that each conversation has one row."""
    from rich.text import Text  # imported late, because Rich is slow to load

    rows = [Text(row) for row in table.split("\n")]
    for row in rows:
        row.truncate(columns(sys.stdout) - 1, overflow="ellipsis")
    return "\n".join(row.plain for row in rows)


def run_show(arguments: argparse.Namespace) -> int:
    from localspec.conversations import conversations
    from localspec.tui.state.conversation import to_markdown

    found = conversations.read(data_dir(), conversations.find(data_dir(), arguments.id, only=True))
    if arguments.json:
        say_json(json.loads(conversations.as_json(found)), indent=2, ensure_ascii=False)
    else:
        say(to_markdown(found), end="")
    return 0


def run_rm(arguments: argparse.Namespace) -> int:
    from localspec.conversations import conversations

    name = conversations.find(data_dir(), arguments.id, only=True)
    gone = [name, *conversations.courses(data_dir(), name)]
    conversations.delete(data_dir(), name)
    if arguments.json:
        say_json({"removed": gone})
    else:
        say("\n".join(f"removed the conversation {each}" for each in gone))
    return 0
