"""Print a script for the shell. bash and zsh: put `eval "$(localspec completion bash)"` (or zsh) into
~/.bashrc (or ~/.zshrc, behind compinit). fish: `localspec completion fish >
~/.config/fish/completions/localspec.fish`.
"""

import argparse

from localspec.display import say

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"  # set by the shell's function while it asks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    say(str(shellcode(["localspec"], shell=arguments.shell)), end="", wrap=False)
    return 0


def complete_with_pairs(action: argparse.Action) -> None:
    """The values of an argument are names of pairs."""
    action.completer = _names_of_pairs  # type: ignore[attr-defined]


def _names_of_pairs(**_: object) -> list[str]:
    from localspec.models.registry import all_pairs

    return [name for pair in all_pairs() for name in (pair.name, *pair.aliases)]
