"""What one render of a template may use: steps, time, and the size of what it makes."""

import time
from collections.abc import Iterator, Mapping, MappingView
from types import GeneratorType
from typing import Any

from jinja2.exceptions import SecurityError

LARGEST_VALUE = 8_000_000  # characters of a text, items of a list: more than any context holds
LARGEST_PARTED = 500_000  # characters of a text that is taken apart, each piece a value of its own
LARGEST_OUTPUT = (
    64_000_000  # characters written by a render, text that only a macro or a block keeps included
)
LARGEST_WORK = 256_000_000  # characters of all the values that a render makes, one after the other
MOST_STEPS = 300_000  # loop iterations and macro calls
MOST_SECONDS = 5.0
STEPS_PER_MESSAGE, SECONDS_PER_MESSAGE = 2_000, 0.01  # beside these
_LARGEST_NUMBER = 16_384  # bits: what Python reads from a text
_PER_ITEM = 16  # what an item of a list weighs beside its own text


class Allowance:
    """Counts, and raises SecurityError when it is used up."""

    def __init__(self) -> None:
        self.start()

    def start(self, messages: int = 0) -> None:
        """A fresh one, for the next render of so many messages."""
        self._steps = self._output = self._work = 0
        self._most_steps = MOST_STEPS + STEPS_PER_MESSAGE * messages
        self._most_seconds = MOST_SECONDS + SECONDS_PER_MESSAGE * messages
        self._deadline = time.monotonic() + self._most_seconds

    def step(self) -> None:
        """One iteration of a loop or call of a macro."""
        self._steps += 1
        if self._steps > self._most_steps:
            raise SecurityError(f"it takes more than {self._most_steps:,} steps")
        self.check_time()

    def write(self, size: int) -> None:
        """So many characters of output."""
        self._output += size
        if self._output > LARGEST_OUTPUT:
            raise SecurityError(f"it writes more than {LARGEST_OUTPUT:,} characters")

    def made(self, value: Any) -> Any:  # noqa: ANN401
        """The value that an operation made, which counts; what a generator yields counts as it comes."""
        if isinstance(value, GeneratorType):
            return self._counted(value)
        if isinstance(value, int) and value.bit_length() > _LARGEST_NUMBER:
            raise SecurityError("it computes a number that is too large")
        size = length(value)
        self.check_size(size)
        self._work += size * (1 if isinstance(value, str) else _PER_ITEM)
        if self._work > LARGEST_WORK:
            raise SecurityError(f"it makes values of more than {LARGEST_WORK:,} characters together")
        return value

    def check_size(self, size: int) -> None:
        if size > LARGEST_VALUE:
            raise SecurityError(f"it makes a value of more than {LARGEST_VALUE:,} characters or items")

    def check_parted(self, text: str) -> None:
        if len(text) > LARGEST_PARTED:
            raise SecurityError(f"it takes a text of more than {LARGEST_PARTED:,} characters apart")

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it takes more than {self._most_seconds:g} seconds")

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for count, item in enumerate(items):
            self.check_size(count)
            self.check_time()
            yield self.made(item) if isinstance(item, str) else item


def length(value: object) -> int:
    """Characters of a text, items of a list, 1 for anything else."""
    return len(value) if isinstance(value, str | list | tuple | dict) else 1


def weight(value: object) -> int:
    """About how long a value is as text, counted no further than a little beyond LARGEST_VALUE."""
    total, pending = 0, [value]
    while pending and total <= LARGEST_VALUE:
        item = pending.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            pending += [*item.keys(), *item.values()]
            total += _PER_ITEM * len(item)
        elif isinstance(item, list | tuple | MappingView):
            pending.extend(item)  # type: ignore[arg-type]  # a view is iterable as well
            total += _PER_ITEM * len(item)
        else:
            total += 1
    return total


def _named(words: str) -> frozenset[str]:
    return frozenset(words.split())


# The methods; all are C, and none but those of a list below makes more than about what it was given.
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(name for name in dir(str) if name.startswith("is"))
    | _named(
        "capitalize casefold count endswith find format index join lower lstrip partition removeprefix "
        "removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip "
        "swapcase title upper"
    ),
    dict: _named("get items keys values"),
    list: _named("count index"),
    tuple: _named("count index grouper list"),  # the latter of what `groupby` makes
}
SPLITTING = _named("split rsplit splitlines")
SLOW_TO_SEARCH = _named("lstrip rfind rindex rpartition rsplit rstrip strip")

# Their time or memory is no multiple of their input's size, and no chat template needs them.
REFUSED_FILTERS = _named("batch center format pprint slice striptags sum urlize wordwrap xmlattr")
# These look at no more than the outside of what they are given.
SHALLOW_FILTERS = _named(
    "attr count d default first items last length map random reject rejectattr reverse select selectattr"
)
# These leave a text in one piece, or have a check of their own.
WHOLE_FILTERS = SHALLOW_FILTERS | _named("capitalize float int lower replace safe string tojson trim upper")
SHALLOW_TESTS = _named(
    "boolean callable defined divisibleby escaped even false float integer iterable mapping none "
    "number odd sameas sequence string true undefined"
)
