"""`localspec fit`: a draft that suits the target, made on this machine."""

import argparse
import sys
from pathlib import Path

from localspec.cli.options import add_pair_argument, load_options
from localspec.cli.printing import DrawnLine, say
from localspec.cli.usage import Subparsers
from localspec.errors import BadSetting

TOKENS = 16_384
ANSWER = 96  # tokens


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="make a draft that suits a target",
        description="Trim the draft of a pair: it keeps only the output rows of tokens that its target writes or "
        "thinks of when it answers built-in prompts, and of frequent ones. Its steps get cheaper, most of all where "
        "the vocabulary is large and the draft small; texts stay the target's own. The result is a new pair.",
    )
    add_pair_argument(parser)
    group = parser.add_argument_group("fitting")
    group.add_argument(
        "--trim",
        type=int,
        default=TOKENS,
        metavar="N",
        help=f"tokens that the draft can still say (default: {TOKENS:,})",
    )
    group.add_argument("--as", dest="new_name", metavar="NAME", help="what the new pair is called")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec import api
    from localspec.fit.trim import trimmable
    from localspec.fit.trimming import fitted_name, fitted_path, keep, trim_for
    from localspec.hub.failures import of_system
    from localspec.pairs.registry import valid_name
    from localspec.pairs.resolve import resolve

    options = load_options(arguments)
    files = resolve(*(options.pop(name, None) for name in ("pair", "target", "draft")))
    if files.draft is None:
        raise BadSetting(f"{files.name} has no draft model to trim", hint="name one: --draft FILE")
    trimmable(files.draft, arguments.trim)
    name = arguments.new_name or fitted_name(files, f"trim-{arguments.trim}")
    if not valid_name(name):
        raise BadSetting(f"a pair cannot be called {name}", hint="choose another name: --as NAME")
    path, before = fitted_path(name), files.draft.stat().st_size
    with DrawnLine(sys.stderr) as line:
        options |= {"target": files.target, "speculate": False}
        with api.load(**options, on_stage=line.draw) as session:
            try:
                found = trim_for(
                    session.engine,
                    files.draft,
                    path,
                    arguments.trim,
                    ANSWER,
                    lambda tokens: line.draw(f"the target answers the built-in prompts: {tokens:,} tokens"),
                )
                keep(name, files, path, f"{files.name} with its draft trimmed to {found.spoken:,} tokens")
            except OSError as error:
                raise of_system(error, path.name) from error
    say(_told(name, found.spoken, found.whole, found.said, found.written, before, path))
    return 0


def _told(name: str, spoken: int, whole: int, said: float, written: int, before: int, path: Path) -> str:
    from localspec.units import size_text

    return (
        f"The draft says {spoken:,} of {whole:,} tokens now, and reads all of them. Of {written:,} tokens that the "
        f"target wrote and the choice did not see, it can say {said:.1%}.\n"
        f"It decodes {size_text(path.stat().st_size)} instead of {size_text(before)}; the pair is called {name}:\n"
        f"localspec bench {name}"
    )
