"""`localspec rm`: take a pair off the disk."""

import argparse
import json

from localspec.cli.usage import Subparsers
from localspec.errors import BadSetting


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "rm",
        help="remove a pair from this machine",
        description="Remove what was fetched for a pair, unless another pair on this machine uses it. A pair "
        "of your own is also taken out of your models.toml.",
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.models.additions import take_out
    from localspec.models.hub_errors import of_system
    from localspec.models.registry import DEMO, find, users_pairs
    from localspec.models.removal import remove
    from localspec.models.units import size_text

    pair = find(arguments.name)
    users = pair.name in {users.name for users in users_pairs()}
    if pair.name == DEMO and not users:
        raise BadSetting(
            "the embedded pair cannot be removed", hint="it steps aside as soon as another pair is here"
        )
    removal = remove(pair)
    try:
        left = take_out(pair.name) if users else None
    except OSError as error:
        raise of_system(error, pair.name) from error
    if arguments.json:
        print(
            json.dumps(
                {
                    "removed": [str(path) for path in removal.removed],
                    "freed_bytes": removal.freed,
                    "taken_out_of": str(left) if left else None,
                    "kept": [{"file": file, "because": reason} for file, reason in removal.kept],
                }
            )
        )
        return 0
    for path in removal.removed:
        print(f"removed {path}")
    for file, reason in removal.kept:
        print(f"kept {file}: {reason}")
    if removal.removed:
        print(f"{size_text(removal.freed)} freed")
    if left:
        print(f"{pair.name} is no longer in {left}")
    elif not removal.removed and not removal.kept:
        print(f"nothing of {pair.name} is on this machine")
    return 0
