"""Errors of a command line, in a sentence and a hint, with exit code 2."""

import argparse
import difflib
from collections.abc import Iterable
from typing import Any, NoReturn

from localspec.display import say
from localspec.errors import BadSetting


class WrongUsage(BadSetting):
    """Arguments that do not exist, have a wrong value, or contradict each other."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that one place prints them."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  argparse's own
        super().__init__(*args, **options)
        self.allow_abbrev = False  # an option that is shortened today may be two options tomorrow
        self.color = False  # of Python 3.14: the help goes through a filter that shows no sequences

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(message, hint=self._help)

    def parse_known_args(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  argparse's own
        """Reads arguments as argparse does: the parser of a command knows all its options."""
        parsed, unknown = super().parse_known_args(*args, **options)
        if unknown:
            word = next((word for word in unknown if word.startswith("--")), "").partition("=")[0]
            near = did_you_mean(word, self._option_string_actions) if word else ""
            raise WrongUsage(f"unexpected {' '.join(unknown)}", hint=f"{near}{self._help}")
        return parsed, unknown

    @property
    def _help(self) -> str:
        return f"`{self.prog} --help` shows the arguments"

    def _print_message(self, message: str, file: object = None) -> None:
        """Help and version, through the filter like everything else."""
        say(message, end="")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question "did you mean" with the nearest known word; "" for none."""
    names = list(known)
    longer = [name for name in names if name.startswith(word)]
    near = longer or difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]}? " if near else ""


def refuse_together(*flags: tuple[str, object]) -> None:
    """Raises WrongUsage if two of these are given: the flag as it is typed, and its value or None."""
    given = [flag for flag, value in flags if value is not None]
    if len(given) > 1:
        raise WrongUsage(f"{given[0]} and {given[1]} contradict each other", hint="give one of them")
