"""Fetch a pair: its headers are checked first, an interrupted pull resumes where it stopped, and every byte
is hashed. `localspec pairs` lists the names. A model of any repository becomes a pair of your own:
ORG/REPO:Q4_K_M, ORG/REPO:FILE.gguf or an address; ORG/REPO lists what there is.
"""

import argparse

from localspec.cli.commands.completion import complete_with_pairs
from localspec.cli.fetching import dry_run, fetch, fetch_reference
from localspec.cli.options import add_quiet_option
from localspec.cli.usage import WrongUsage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    name = parser.add_argument("name", metavar="NAME", help="for example llama-3-8b+1b, or ORG/REPO:Q4_K_M")
    complete_with_pairs(name)
    parser.add_argument(
        "--draft", metavar="FILE", help="what drafts for a model of the Hub (default: its own text, lookup)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be fetched")
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    from localspec.models.find import is_on_hub
    from localspec.models.registry import is_known, named

    if is_on_hub(arguments.name, arguments.draft) and not (
        is_known(arguments.name) and arguments.draft is None
    ):
        fetch_reference(arguments.name, arguments.draft, dry=arguments.dry_run)
        return 0
    if arguments.draft:
        raise WrongUsage(
            "--draft goes with a model of the Hub, not with the name of a pair", hint="leave it out"
        )
    pair = named(arguments.name)
    if arguments.dry_run:
        dry_run(pair)
    else:
        fetch(pair)
    return 0
