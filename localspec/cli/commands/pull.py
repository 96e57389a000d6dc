"""Download a pair; `localspec pairs` lists the names. The headers are checked before the download and the hashes
after it; an interrupted pull resumes where it stopped. Any model on Hugging Face, named ORG/REPO:Q4_K_M,
ORG/REPO:FILE.gguf or by a link, becomes a pair of your own. ORG/REPO alone lists the models of this repository.
"""

import argparse

from localspec.cli.commands.completion import complete_with_pairs
from localspec.cli.fetching import DRAFT_HELP, fetch, fetch_reference, suggest_draft
from localspec.cli.options import add_quiet_option
from localspec.display import say
from localspec.errors import BadSetting
from localspec.models import registry
from localspec.models.names import is_on_hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    complete_with_pairs(
        add("name", nargs="?", metavar="NAME", help="a pair, or a model on Hugging Face as ORG/REPO:Q4_K_M")
    )
    add("--draft", metavar="FILE", help=DRAFT_HELP)
    add("--images", action="store_true", help="also download what the target needs to read images")
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    name, draft = arguments.name, arguments.draft
    if name is None:
        raise BadSetting("no pair is named", hint="name one of `localspec pairs`: localspec pull NAME")
    if is_on_hub(name, draft) and not (registry.is_known(name) and draft is None):
        fetch_reference(name, draft, images=arguments.images)
    elif draft:
        what = "--draft is for a model on Hugging Face, not for the name of a pair"
        raise BadSetting(what, hint="leave out --draft")
    elif (pair := registry.named(name)).found:
        if suggest_draft(pair, pull=True).draft is None:
            say(f"{name} is on this machine, and localspec knows no draft for it")
    else:
        fetch(pair, images=arguments.images)
    return 0
