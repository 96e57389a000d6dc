"""`localspec forget`: delete the replies that were remembered to draft from."""

import argparse

from localspec.cli.printing import say
from localspec.cli.usage import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "forget",
        help="delete remembered replies",
        description="Delete the replies that localspec remembers to draft from, if `remember_replies` was set.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.pair_drafting import replies_dir

    files = [path for path in replies_dir().glob("*") if path.is_file()]
    for path in files:
        path.unlink(missing_ok=True)
    say(f"Forgot the replies of {len(files)} model{'' if len(files) == 1 else 's'}.")
    return 0
