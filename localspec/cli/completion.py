"""What a shell is told when Tab is pressed: commands, options, and the names of pairs and themes."""

import argparse

ASKED = "_ARGCOMPLETE"  # set by the shell's function while it asks


def answer(parser: argparse.ArgumentParser) -> None:
    """Tell the shell what fits, and end the process."""
    import argcomplete

    argcomplete.autocomplete(parser)


def script(shell: str) -> str:
    """What the start file of bash, zsh or fish evaluates."""
    from argcomplete.shell_integration import shellcode

    return str(shellcode(["localspec"], shell=shell))


def complete_with_pairs(action: argparse.Action) -> None:
    """The values of an argument are names of pairs."""
    action.completer = _names  # type: ignore[attr-defined]


def complete_with_themes(action: argparse.Action) -> None:
    """The values of an argument are names of themes."""
    action.completer = _themes  # type: ignore[attr-defined]


def _names(**_: object) -> list[str]:
    from localspec.pairs.registry import all_pairs

    return [name for pair in all_pairs() for name in (pair.name, *pair.aliases)]


def _themes(**_: object) -> list[str]:
    from textual.theme import BUILTIN_THEMES

    from localspec.tui.state.remembered import Preferences

    return [Preferences().theme, *BUILTIN_THEMES]
