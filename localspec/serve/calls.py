"""Tool calls while a model writes them: which function, and its arguments piece by piece."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from localspec.chat.tools import new_call_id

# How the formats of localspec.chat.tools lead up to the arguments; a grammar sees to it that they do.
_HEAD = re.compile(
    r'\{"name": "([^"]+)", "(?:arguments|parameters)": |\[TOOL_CALLS\]([A-Za-z0-9_.-]{1,64})\[ARGS\]'
)


@dataclass(slots=True)
class Call:
    """A call that grows."""

    number: int
    id: str
    name: str
    arguments: str = ""  # so far


@dataclass(frozen=True, slots=True)
class Began:
    call: Call


@dataclass(frozen=True, slots=True)
class Grew:
    call: Call
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    call: Call


Step = Began | Grew | Ended


class CallReader:
    """Reads the text of the calls in one reply."""

    def __init__(self) -> None:
        self._held = ""
        self._count = 0
        self._call: Call | None = None
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> Iterator[Step]:
        """What this text adds."""
        self._held += text
        while self._held:
            if self._call is None:
                head = _HEAD.search(self._held)
                if head is None:
                    return
                self._held = self._held[head.end() :]
                self._call = Call(self._count, new_call_id(), head[1] or head[2])
                self._count += 1
                yield Began(self._call)
            end = self._end_of_arguments()
            written, self._held = self._held[:end], self._held[end:]
            if written:
                self._call.arguments += written
                yield Grew(self._call, written)
            if written and not self._depth:
                yield Ended(self._call)
                self._call = None

    def _end_of_arguments(self) -> int:
        """How much of what is held belongs to the arguments; `_depth` is 0 where they end there."""
        for at, sign in enumerate(self._held, start=1):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = sign == "\\"
                self._quoted = sign != '"'
            elif sign == '"':
                self._quoted = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    return at
        return len(self._held)
