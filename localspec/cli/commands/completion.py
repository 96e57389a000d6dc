"""Print the script for Tab completion. In bash put `eval "$(localspec completion bash)"` into ~/.bashrc. In zsh put
`eval "$(localspec completion zsh)"` into ~/.zshrc, after compinit. In fish run `localspec completion fish >
~/.config/fish/completions/localspec.fish`.
"""

import argparse

from localspec.display import say

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"  # a variable that the shell sets during a completion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    say(str(shellcode(["localspec"], shell=arguments.shell)), end="", wrap=False)
    return 0


def complete_with_pairs(action: argparse.Action) -> None:
    action.completer = _names_of_pairs  # type: ignore[attr-defined]


def _names_of_pairs(**_: object) -> list[str]:
    from localspec.models.registry import all_pairs

    return [name for pair in all_pairs() for name in (pair.name, *pair.aliases)]
