"""`localspec prune`: remove half pulls and files that no pair uses any more."""

import argparse

from localspec.cli.commands.rm import as_json, tell
from localspec.cli.printing import say, say_json
from localspec.cli.usage import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "prune",
        help="remove files that no pair here uses",
        description="Remove what `localspec list` shows as unused: files of interrupted pulls, and files that "
        "no pair names any more. Pairs that are here as a whole or are being fetched keep theirs.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.pairs.removal import prune

    removal = prune()
    if arguments.json:
        say_json(as_json(removal))
        return 0
    tell(removal)
    if not removal.removed:
        say("nothing to remove: every file here belongs to a pair")
    return 0
