"""One message, one line of JSON: what crosses the pipes between the engine process and its client."""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, BinaryIO, get_args

import msgspec

from localspec.engine import messages
from localspec.errors import EngineDied

_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in get_args(messages.Request) + get_args(messages.Report)
}
_NAMES = {name: {field.name for field in fields(kind)} for name, kind in _KINDS.items()}


def encode(message: object) -> bytes:
    """A message as one line; text is escaped to ASCII, so newlines and encodings cannot break it."""
    # Python's JSON: msgspec's own has no infinity, no file name that is not UTF-8, and no number above 2**64.
    return json.dumps([type(message).__name__, msgspec.to_builtins(message)]).encode() + b"\n"


def decode(line: bytes) -> Any:  # noqa: ANN401 - the caller matches on the class
    """The message in a line. Raises EngineDied for another line: the stream cannot be trusted any more."""
    try:
        kind, values = json.loads(line)
        if values.keys() - _NAMES[kind]:
            raise ValueError("a field that it does not have")
        return msgspec.convert(values, _KINDS[kind])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineDied(
            f"invalid message between localspec and its engine process: {line[:80]!r}",
            hint="restart it; if it happens again, reinstall localspec",
        ) from error


def read(source: BinaryIO) -> Iterator[Any]:
    """Messages until the other end closes; an unfinished last line is dropped."""
    for line in source:
        if line.endswith(b"\n"):
            yield decode(line)
