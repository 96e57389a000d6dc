"""`localspec rm`: take a pair off the disk."""

import argparse
from typing import TYPE_CHECKING

from localspec.cli.completion import complete_with_pairs
from localspec.cli.printing import say, say_json
from localspec.cli.usage import Subparsers
from localspec.errors import BadSetting

if TYPE_CHECKING:
    from localspec.pairs.removal import Removal


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "rm",
        help="remove a pair from this machine",
        description="Remove what was fetched for a pair, unless another pair on this machine uses it. A pair "
        "of your own is forgotten, too.",
    )
    named = parser.add_argument("name", metavar="NAME", help="as `localspec list` names it")
    complete_with_pairs(named)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.hub import of_system
    from localspec.pairs.additions import take_out
    from localspec.pairs.registry import DEMO, find, users_pairs
    from localspec.pairs.removal import remove

    pair = find(arguments.name)
    users = pair.name in {users.name for users in users_pairs()}
    if pair.name == DEMO and not users:
        raise BadSetting(
            "the embedded pair cannot be removed", hint="it steps aside as soon as another pair is here"
        )
    removal = remove(pair)
    try:
        left = take_out(pair.name) if users else ()
    except OSError as error:
        raise of_system(error, pair.name, "removed") from error
    if arguments.json:
        say_json(as_json(removal) | {"taken_out_of": str(left[-1]) if left else None})
        return 0
    tell(removal)
    for path in left:
        say(f"{pair.name} is no longer in {path}")
    if not left and not removal.removed and not removal.kept:
        say(f"nothing of {pair.name} is on this machine")
    return 0


def tell(removal: "Removal") -> None:
    """Print what was removed and what was not."""
    from localspec.units import size_text

    for path in removal.removed:
        say(f"removed {path}")
    for file, reason in removal.kept:
        say(f"kept {file}: {reason}")
    if removal.removed:
        say(f"{size_text(removal.freed)} freed")


def as_json(removal: "Removal") -> dict[str, object]:
    return {
        "removed": [str(path) for path in removal.removed],
        "freed_bytes": removal.freed,
        "kept": [{"file": file, "because": reason} for file, reason in removal.kept],
    }
