"""JSON that somebody may have damaged, read as the type that was written."""

import dataclasses
import json
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def loads_as(kind: type[T], text: str) -> T:
    """A document that holds a `kind`, as `read_as` knows them. Raises ValueError, nothing else."""
    try:
        return read_as(kind, json.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_as(kind: type[T], value: object) -> T:
    """`value` as `kind`: dataclasses, tuples, options and dicts of texts and finite numbers; ValueError otherwise."""
    return typing.cast(T, _read(kind, value))


def _read(kind: Any, value: Any) -> Any:  # noqa: ANN401  what JSON holds
    if dataclasses.is_dataclass(kind):
        types_ = typing.get_type_hints(kind)
        if not isinstance(value, dict) or set(value) != set(types_):
            raise ValueError(f"not a {kind}")
        return typing.cast(Any, kind)(**{name: _read(types_[name], part) for name, part in value.items()})
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        present = [option for option in parts if option is not types.NoneType]
        return None if value is None else _read(present[0], value)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(parts[0], part) for part in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(parts[1], part) for key, part in value.items()}
    return _plain(kind, value)


def _plain(kind: Any, value: Any) -> Any:  # noqa: ANN401
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    raise ValueError(f"not a {kind}: {value!r}")
