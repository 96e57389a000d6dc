"""Tool calls while a model writes them: the function's name, then its arguments piece by piece."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from localspec.chat.tools import new_call_id

# The text before the arguments in the formats of localspec.chat.tools; a grammar enforces it.
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


class Step(NamedTuple):
    """A change of a call; `text` is new text of the arguments."""

    what: Literal["began", "grew", "ended"]
    call: Call
    text: str = ""


class CallReader:
    """Reads the text of the calls in one reply."""

    def __init__(self) -> None:
        self._unread = ""
        self._count = 0
        self._call: Call | None = None
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> Iterator[Step]:
        """The steps that this text completes."""
        self._unread += text
        while self._unread:
            if self._call is None:
                head = _HEAD.search(self._unread)
                if head is None:
                    return
                self._unread = self._unread[head.end() :]
                self._call = Call(self._count, new_call_id(), head[1] or head[2])
                self._count += 1
                yield Step("began", self._call)
            end = self._end_of_arguments()
            written, self._unread = self._unread[:end], self._unread[end:]
            if written:
                self._call.arguments += written
                yield Step("grew", self._call, written)
            if written and not self._depth:
                yield Step("ended", self._call)
                self._call = None

    def _end_of_arguments(self) -> int:
        """How many unread characters belong to the arguments; `_depth` is 0 where they end there."""
        for at, sign in enumerate(self._unread, start=1):
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
        return len(self._unread)
