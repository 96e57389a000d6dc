"""`localspec list`: the pairs whose files are on this machine, and files that no pair uses."""

import argparse
from datetime import datetime
from typing import TYPE_CHECKING

from localspec.cli.printing import say, say_json
from localspec.cli.usage import Subparsers

if TYPE_CHECKING:
    from localspec.pairs.registry import Pair


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "list",
        help="list the pairs that are on this machine",
        description="List the pairs that are on this machine, with their size and when they were used last, and files "
        "of interrupted pulls and of pairs that are gone.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.pairs.estimate import file_bytes
    from localspec.pairs.registry import all_pairs
    from localspec.pairs.removal import leftovers
    from localspec.pairs.store import distinct, last_uses, locate, on_disk
    from localspec.units import size_text

    uses = last_uses()
    here = [pair for pair in all_pairs() if on_disk(pair)]
    here.sort(key=lambda pair: -uses.get(pair.name, 0.0))
    unused = leftovers()
    paths = {
        path for file in distinct(file for pair in here for file in pair.files) if (path := locate(file))
    }
    total = sum(path.stat().st_size for path in paths) + sum(left.bytes for left in unused)
    if arguments.json:
        say_json(
            {
                "pairs": [_pair_json(pair, file_bytes(pair), uses.get(pair.name)) for pair in here],
                "unused": [
                    {"path": str(left.path), "bytes": left.bytes, "pair": left.pair} for left in unused
                ],
                "bytes": total,
            },
            indent=2,
        )
        return 0
    say(f"{'NAME':<26} {'SIZE':>8}  LAST USED")
    for pair in here:
        say(f"{pair.name:<26} {size_text(file_bytes(pair)):>8}  {_when(uses.get(pair.name))}")
    if unused:
        say("\nUNUSED, which `localspec prune` removes")
    for left in unused:
        why = f"`localspec pull {left.pair}` completes it" if left.pair else "no pair names it any more"
        say(f"{left.path.name:<26} {size_text(left.bytes):>8}  {why}")
    say(f"\n{'all of it':<26} {size_text(total):>8}")
    return 0


def _pair_json(pair: "Pair", size: int, used: float | None) -> dict[str, object]:
    from localspec.pairs.store import is_ours, locate

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
