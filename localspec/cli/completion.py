"""What a shell is told when Tab is pressed: commands and options from the parser, names of pairs from the registry."""

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


def _names(**_: object) -> list[str]:
    from localspec.pairs.registry import all_pairs

    return [name for pair in all_pairs() for name in (pair.name, *pair.aliases)]
