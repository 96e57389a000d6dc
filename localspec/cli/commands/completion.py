"""`localspec completion`: the script that makes Tab complete commands, options and names of pairs."""

import argparse

from localspec.cli.completion import script
from localspec.cli.printing import say
from localspec.cli.usage import Subparsers

SHELLS = ("bash", "zsh", "fish")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="let Tab complete in bash, zsh or fish",
        description='Print a script for the shell. bash and zsh: put `eval "$(localspec completion bash)"` (or '
        "zsh) into ~/.bashrc (or ~/.zshrc, behind compinit). fish: `localspec completion fish > "
        "~/.config/fish/completions/localspec.fish`.",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    say(script(arguments.shell), end="")
    return 0
