"""`localspec list`: the pairs whose files are on this machine."""

import argparse
import json
from datetime import datetime
from typing import TYPE_CHECKING

from localspec.cli.usage import Subparsers

if TYPE_CHECKING:
    from localspec.models.registry import Pair


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "list",
        help="list the pairs that are on this machine",
        description="List the pairs that are on this machine, with their size and when they were used last.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.models.estimate import file_bytes
    from localspec.models.registry import all_pairs
    from localspec.models.store import last_uses, on_disk
    from localspec.models.units import size_text

    uses = last_uses()
    here = [pair for pair in all_pairs() if on_disk(pair)]
    here.sort(key=lambda pair: -uses.get(pair.name, 0.0))
    if arguments.json:
        print(json.dumps([_as_json(pair, file_bytes(pair), uses.get(pair.name)) for pair in here], indent=2))
        return 0
    print(f"{'NAME':<26} {'SIZE':>8}  LAST USED")
    for pair in here:
        print(f"{pair.name:<26} {size_text(file_bytes(pair)):>8}  {_when(uses.get(pair.name))}")
    return 0


def _as_json(pair: "Pair", size: int, used: float | None) -> dict[str, object]:
    from localspec.models.store import is_ours, locate

    paths = [path for path in map(locate, pair.files) if path]
    return {
        "name": pair.name,
        "bytes": size,
        "last_used": None
        if used is None
        else datetime.fromtimestamp(used).astimezone().isoformat("T", "seconds"),
        "files": [{"path": str(path), "removable": is_ours(path)} for path in paths],
    }


def _when(used: float | None) -> str:
    return "-" if used is None else datetime.fromtimestamp(used).strftime("%Y-%m-%d %H:%M")
