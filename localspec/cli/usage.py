"""What is wrong with a command line, told like every other mistake: a sentence, a hint, exit code 2."""

import argparse
from typing import Any, NoReturn, TypeAlias

from localspec.cli.printing import say
from localspec.errors import BadSetting


class WrongUsage(BadSetting):
    """Arguments that do not exist, are not what they should be, or contradict each other."""


class Parser(argparse.ArgumentParser):
    """Raises its mistakes, so that one place tells them."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  argparse's own
        super().__init__(*args, **options)
        self.color = False  # of Python 3.14: the help goes through a filter that shows no sequences

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(message, hint=f"`{self.prog} --help` shows what can be given")

    def _print_message(self, message: str, file: object = None) -> None:
        """Help and version, through the filter like everything else."""
        say(message, end="")


Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"


def refuse_together(*flags: tuple[str, object]) -> None:
    """Raises WrongUsage where two of these are given: the flag as it is typed, and its value or None."""
    given = [flag for flag, value in flags if value is not None]
    if len(given) > 1:
        raise WrongUsage(f"{given[0]} and {given[1]} contradict each other", hint="give one of them")
