"""`localspec rm`: take a pair off the disk."""

import argparse
import json


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "rm",
        help="remove a pair from this machine",
        description="Remove what was fetched for a pair, unless another pair on this machine uses it.",
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.models.registry import find
    from localspec.models.removal import remove
    from localspec.models.units import size_text

    pair = find(arguments.name)
    removal = remove(pair)
    if arguments.json:
        print(
            json.dumps(
                {
                    "removed": [str(path) for path in removal.removed],
                    "freed_bytes": removal.freed,
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
    elif not removal.kept:
        print(f"nothing of {pair.name} is on this machine")
    return 0
