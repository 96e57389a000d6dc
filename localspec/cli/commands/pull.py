"""`localspec pull`: fetch a pair, with what it will need shown before the gigabytes come."""

import argparse
import sys
from typing import TYPE_CHECKING

from localspec.cli.printing import say
from localspec.cli.usage import Subparsers

if TYPE_CHECKING:
    from localspec.pairs.registry import Pair


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "pull",
        help="fetch a pair by name",
        description="Fetch a pair: its headers are checked first, an interrupted pull goes on where it "
        "stopped, and every byte is hashed. `localspec pairs` lists the names.",
    )
    parser.add_argument("name", metavar="NAME", help="for example llama-3-8b+1b")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be fetched")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.pairs.registry import find

    pair = find(arguments.name)
    if arguments.dry_run:
        dry_run(pair)
    else:
        fetch(pair)
    return 0


def fetch(pair: "Pair") -> None:
    """Pull with a progress display on stderr, where all of it goes; Ctrl-C keeps what came."""
    from localspec.cli.progress_line import ProgressLine
    from localspec.pairs.download import pull

    display = ProgressLine(pair.name)
    try:
        pull(pair, progress=display.show)
    except KeyboardInterrupt:
        display.clear()
        say(f"Stopped. Go on with: localspec pull {pair.name}", to=sys.stderr)
        raise
    finally:
        display.clear()
    say(f"{pair.name} is ready: localspec run --pair {pair.name} PROMPT", to=sys.stderr)


def dry_run(pair: "Pair") -> None:
    from localspec.pairs.download import plan_pull
    from localspec.pairs.resolve import refuse_unless_runnable
    from localspec.units import size_text

    refuse_unless_runnable(pair)
    files = plan_pull(pair)
    for file in files:
        if file.here:
            state = f"here: {file.here}"
        elif file.cached:
            state = "in the Hugging Face cache: only to be hashed"
        elif file.partial:
            state = f"{size_text(file.partial)} are here already"
        else:
            state = "to fetch"
        say(f"{file.name:<48} {size_text(file.bytes):>8}  {state}")
    say(f"{size_text(sum(file.to_fetch for file in files))} would be fetched.")
