"""JSON schemas as users give them: read, measured before anything works on them, and narrowed."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import lcm
from typing import Any

from localspec.errors import BadSetting

DEEPEST = 100  # levels; llguidance reads 128
LONGEST_PATH = 20_000  # levels that references can add up to: llguidance follows them by recursion
WIDEST_NUMBER = 10**15  # beyond, a double has no exact whole numbers
FINEST, NARROW = 1e-9, 1e-3  # the last decimal of a number, unless its bounds are closer than this
LARGEST_MULTIPLE = 20_000  # llguidance's automaton has about as many states
_HINT = 'give a JSON schema: {"type": "object", "properties": {...}}'
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "minProperties"})
_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_SCHEMAS = frozenset({"items", "prefixItems", "additionalProperties", "anyOf", "oneOf"})


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
            f"the JSON schema is nested deeper than {DEEPEST} levels",
            hint="simplify the schema",
        )
    if not isinstance(schema, dict):
        raise BadSetting("the JSON schema is not an object", hint=_HINT)
    _check_multiples(schema)
    references = sum("$ref" in part for part in _objects(schema))
    if references * depth(schema) > LONGEST_PATH:
        refused = f"the JSON schema has {references:,} references, too many for its depth"
        raise BadSetting(refused, hint="simplify the schema")
    return schema


def depth(value: object) -> int:
    """How deep lists and objects are nested."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, parts), default=0)


def narrowed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without what no caller wants and small models do not stop writing.

    Objects that name properties get no others, and numbers at most 15 digits before and 9 after the point,
    unless the schema says otherwise. What matches still matches the schema as it was given. Where schemas are
    combined with allOf, closing one part would contradict another: this schema stays as it is.
    """
    parts = list(_objects(schema))
    if any("allOf" in part for part in parts):
        return schema
    exact = any("multipleOf" in part for part in parts) and any(_COMBINING & part.keys() for part in parts)
    return _Narrowing(limits_decimals=not exact).schema(schema)


@dataclass(frozen=True, slots=True)
class _Narrowing:
    limits_decimals: bool  # False where one multipleOf might meet another

    def schema(self, given: dict[str, Any]) -> dict[str, Any]:
        inside = {name: self._keyword(name, value) for name, value in given.items()}
        closing = {"additionalProperties": False} if _only_names(given) else {}
        return {**inside, **closing, **self._limits(given)}

    def _keyword(self, name: str, value: Any) -> Any:  # noqa: ANN401  JSON
        if name in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            return {key: self._part(part) for key, part in value.items()}
        return self._part(value) if name in _SCHEMAS else value

    def _part(self, value: Any) -> Any:  # noqa: ANN401  JSON
        if isinstance(value, list):
            return [self._part(part) for part in value]
        return self.schema(value) if isinstance(value, dict) else value

    def _limits(self, given: Mapping[str, Any]) -> dict[str, Any]:
        kinds = given.get("type")
        kinds = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
        if not kinds & {"number", "integer"} or {"enum", "const"} & given.keys():
            return {}
        low = [given[name] for name in ("minimum", "exclusiveMinimum") if name in given]
        high = [given[name] for name in ("maximum", "exclusiveMaximum") if name in given]
        if not all(isinstance(bound, int | float) and abs(bound) < WIDEST_NUMBER for bound in (*low, *high)):
            return {}
        limits: dict[str, Any] = {"minimum": -WIDEST_NUMBER} if not low else {}
        limits |= {"maximum": WIDEST_NUMBER} if not high else {}
        narrow = bool(low and high) and min(high) - max(low) < NARROW
        if "number" in kinds and "multipleOf" not in given and self.limits_decimals and not narrow:
            limits["multipleOf"] = FINEST
        return limits


def _only_names(schema: Mapping[str, Any]) -> bool:
    named, required = schema.get("properties"), schema.get("required", [])
    return (
        isinstance(named, dict)
        and bool(named)
        and isinstance(required, list)
        and all(isinstance(name, str) and name in named for name in required)
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


def kind_of(value: object) -> str:
    """What JSON schemas call a value's type, whole numbers among the numbers."""
    kinds: dict[type, str] = {str: "string", bool: "boolean", int: "number", float: "number", list: "array"}
    return "null" if value is None else kinds.get(type(value), "object")


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, or what it refers to in the root."""
    for _ in range(10):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        found: Any = root
        for step in reference[1:].strip("/").split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return {}
        schema = found
    return {}


def kinds_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """The types of JSON that a schema lets through, whole numbers among the numbers; none where it does not say."""
    schema = resolved(schema, root)
    if "enum" in schema or "const" in schema:
        given = schema.get("enum", [schema.get("const")])
        return {kind_of(value) for value in given} if isinstance(given, list) else set()
    named = schema.get("type")
    if named:
        names = named if isinstance(named, list) else [named]
        return {"number" if name == "integer" else str(name) for name in names}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            kinds = [kinds_of(part, root) for part in schema[word] if isinstance(part, Mapping)]
            return set().union(*kinds) if all(kinds) else set()
    return set()
