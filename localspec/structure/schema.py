"""JSON schemas as users give them: read, measured before anything works on them, and closed."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from math import lcm
from typing import Any

from localspec.errors import BadSetting

DEEPEST = 100  # levels; llguidance reads 128
LARGEST_MULTIPLE = 20_000  # llguidance's automaton has about as many states
_HINT = 'give a JSON schema: {"type": "object", "properties": {...}}'
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "minProperties"})


def read_schema(given: object, *, largest: int) -> dict[str, Any]:
    """A schema from a dictionary, JSON text, or a Pydantic model class; BadSetting for anything else.

    `largest`: characters that its text may have.
    """
    model_schema = getattr(given, "model_json_schema", None)
    if callable(model_schema):
        given = model_schema()
    text = given if isinstance(given, str) else _dumped(given)
    if len(text) > largest:
        raise BadSetting(
            f"the JSON schema has {len(text):,} characters, {largest:,} at most are allowed",
            hint="simplify the schema",
        )
    try:
        schema = json.loads(text)
        deep = depth(schema) > DEEPEST
    except ValueError as error:
        raise BadSetting(f"the JSON schema is not JSON: {error}", hint=_HINT) from error
    except RecursionError:
        deep = True
    if deep:
        raise BadSetting(
            f"the JSON schema is nested deeper than {DEEPEST} levels", hint="simplify the schema"
        )
    if not isinstance(schema, dict):
        raise BadSetting("the JSON schema is not an object", hint=_HINT)
    if not isinstance(schema.get("x-guidance", {}), dict):
        raise BadSetting("x-guidance in the JSON schema is not an object", hint="leave it out")
    _check_multiples(schema)
    return schema


def depth(value: object) -> int:
    """How deep lists and objects are nested."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, parts), default=0)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties: false` in every object that only names properties.

    Whoever names properties wants those, and a model that may add more often does not stop. Where schemas are
    combined with allOf, closing one part would contradict another: such a schema stays as it is.
    """
    if any("allOf" in part for part in _objects(schema)):
        return schema
    result: dict[str, Any] = _closed(schema, is_schema=True)
    return result


_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DATA = frozenset({"const", "enum", "default", "examples", "example", "required", "x-guidance"})


def _closed(value: Any, *, is_schema: bool) -> Any:  # noqa: ANN401  JSON
    """A part of a schema; what is a map of names to schemas is not a schema itself."""
    if isinstance(value, list):
        return [_closed(item, is_schema=True) for item in value]
    if not isinstance(value, dict):
        return value
    inside = {
        name: part
        if is_schema and name in _DATA
        else _closed(part, is_schema=not (is_schema and name in _MAPS_OF_SCHEMAS))
        for name, part in value.items()
    }
    return {**inside, "additionalProperties": False} if is_schema and _only_names(value) else inside


def _only_names(schema: Mapping[str, Any]) -> bool:
    named, required = schema.get("properties"), schema.get("required", [])
    return (
        isinstance(named, dict)
        and bool(named)
        and isinstance(required, list)
        and all(name in named for name in required)
        and "additionalProperties" not in schema
        and not _COMBINING & schema.keys()
    )


def _check_multiples(schema: dict[str, Any]) -> None:
    """Refuse a multipleOf that would take minutes; of parts that may meet, the common multiple counts."""
    together = 1
    combined = any(_COMBINING & part.keys() for part in _objects(schema))
    for part in _objects(schema):
        if isinstance(part.get("multipleOf"), int | float):
            value = _digits(part["multipleOf"])
            together = lcm(together, value) if combined else value
            if together > LARGEST_MULTIPLE:
                raise BadSetting(
                    f"multipleOf {part['multipleOf']} in the JSON schema asks for too large an automaton",
                    hint=f"use values with few digits, below {LARGEST_MULTIPLE:,}",
                )


def _digits(value: float) -> int:
    """The digits of a number as a whole number: 0.25 gives 25."""
    try:
        return abs(int("".join(map(str, Decimal(str(value)).as_tuple().digits)))) or 1
    except (InvalidOperation, ValueError):
        return 1


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from _objects(part)
    elif isinstance(value, list):
        for part in value:
            yield from _objects(part)


def _dumped(given: object) -> str:
    try:
        return json.dumps(given)
    except RecursionError:
        raise BadSetting("the JSON schema is nested too deeply", hint="simplify the schema") from None
    except (TypeError, ValueError) as error:
        raise BadSetting(f"the JSON schema cannot be written as JSON: {error}", hint=_HINT) from error
