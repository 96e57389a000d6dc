"""`localspec outdated`: which pins of the pairs here are older than what the Hub has."""

import argparse
from typing import TYPE_CHECKING

from localspec.cli.printing import say, say_json
from localspec.cli.usage import Subparsers

if TYPE_CHECKING:
    from localspec.pairs.references import Newer


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "outdated",
        help="tell which files here are replaced on the Hub",
        description="Ask the Hub for every file of the pairs on this machine whether a newer one is in its place. "
        "Pins stay: what is here goes on working.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.pairs.references import outdated

    found = outdated()
    if arguments.json:
        say_json({"newer": [{"pair": new.pair, "file": new.text, "bytes": new.bytes} for new in found]})
        return 0
    for new in found:
        say(f"{new.pair:<26} {new.text}  {_what(new)}")
    say(
        "localspec pull FILE fetches a newer one as a pair of your own"
        if found
        else "every pin is up to date"
    )
    return 0


def _what(new: "Newer") -> str:
    from localspec.units import size_text

    return "is gone" if new.bytes is None else f"is another file now, {size_text(new.bytes)}"
