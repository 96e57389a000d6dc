"""One message, one line of JSON: what crosses the pipes between the engine process and its client."""

import json
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, BinaryIO, Union, get_args, get_origin, get_type_hints

from localspec.engine import messages
from localspec.errors import EngineDied

Convert = Callable[[Any], Any]
_KINDS: dict[str, type] = {
    kind.__name__: kind for kind in get_args(messages.Request) + get_args(messages.Report)
}


def encode(message: object) -> bytes:
    """A message as one line; text is escaped to ASCII, so no newline and no encoding can break it."""
    return json.dumps([type(message).__name__, _plain(message)], separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Any:  # noqa: ANN401 - the caller matches on the class
    """The message in a line. Raises EngineDied when it is none: the stream cannot be trusted any more."""
    try:
        kind, values = json.loads(line)
        return _read_dataclass(_KINDS[kind])(values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineDied(
            f"invalid message from the engine process: {line[:80]!r}",
            hint="restart it; if it happens again, reinstall localspec",
        ) from error


def read(source: BinaryIO) -> Iterator[Any]:
    """Messages until the other end closes; an unfinished last line is dropped."""
    for line in source:
        if line.endswith(b"\n"):
            yield decode(line)


def _plain(value: Any) -> Any:  # noqa: ANN401
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: _plain(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _read_dataclass(kind: Any) -> Convert:  # noqa: ANN401
    hints = get_type_hints(kind)
    converts = {name: _reader(hints[name]) for name in _names(kind)}

    def build(values: dict[str, Any]) -> Any:  # noqa: ANN401
        return kind(**{name: converts[name](value) for name, value in values.items()})

    return build


def _reader(hint: Any) -> Convert:  # noqa: ANN401
    """How to make a value of an annotated type from what JSON gives back."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = _reader(next(part for part in get_args(hint) if part is not type(None)))
        return lambda value: None if value is None else inner(value)
    if get_origin(hint) is tuple:
        item = _reader(get_args(hint)[0])
        return lambda values: tuple(item(value) for value in values)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if is_dataclass(hint):
        kind: Any = hint
        return _read_dataclass(kind)
    return lambda value: value
