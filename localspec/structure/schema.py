"""Read JSON schemas, check their size, and narrow them."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from decimal import Decimal
from math import lcm
from typing import Any
from urllib.parse import unquote

from localspec.errors import BadSetting

LARGEST = 1_000_000  # largest number of characters in a schema or a regular expression
DEEPEST = 100  # largest number of levels in a schema; llguidance reads at most 128
LONGEST_PATH = 20_000  # limit of references times levels, because llguidance follows references by recursion
WIDEST_NUMBER = 10**15  # a double holds every whole number up to this one
FINEST, NARROW = 1e-9, 1e-3  # numbers are multiples of FINEST, unless their bounds are closer than NARROW
# Between close bounds, numbers are multiples of FINER, the finest step of llguidance. Bounds that are closer than
# NARROWER leave too few of them.
FINER, NARROWER = 1e-10, 1e-7
LARGEST_MULTIPLE = 20_000  # largest multipleOf, its decimal point removed; llguidance needs as many states
_HINT = 'give a JSON schema: {"type": "object", "properties": {...}}'
_LEAST, _MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "minProperties"})
MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
SCHEMAS = frozenset({"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"})
_LONGEST = {  # greatest length of a text by its format, where the format itself sets none
    "email": 254, "hostname": 253, "uri": 2048, "duration": 64, "date-time": 64, "time": 32, "ipv6": 45,
}  # fmt: skip


def read_object(given: object) -> dict[str, Any]:
    """Read a schema from a dictionary, JSON text, or a Pydantic model. Raises BadSetting."""
    model_schema = getattr(given, "model_json_schema", None)
    if callable(model_schema):
        given = model_schema()
    text, schema = "", None
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        schema = json.loads(text) if len(text) <= LARGEST else None
        deep = depth(schema) > DEEPEST
    except RecursionError:
        deep = True
    except (TypeError, ValueError) as error:
        raise BadSetting(f"the JSON schema is not valid JSON: {error}", hint=_HINT) from error
    if len(text) > LARGEST:
        what = f"the JSON schema has {len(text):,} characters, more than {LARGEST:,}"
        raise BadSetting(what, hint="simplify the schema")
    if deep:
        what = f"the JSON schema is nested deeper than {DEEPEST} levels"
        raise BadSetting(what, hint="simplify the schema")
    if not isinstance(schema, dict):
        raise BadSetting("the JSON schema is not an object", hint=_HINT)
    return schema


def check_complexity(schema: dict[str, Any]) -> None:
    """Refuse a schema that would take minutes to compile. Raises BadSetting."""
    _check_multiples(schema)
    references = sum("$ref" in part for part in schemas_in(schema))
    if references * (levels := depth(schema)) > LONGEST_PATH:
        what = f"the JSON schema is too complex: {references:,} references in {levels:,} levels"
        raise BadSetting(what, hint="use fewer $ref, or nest the schema less deeply")


def check_ends(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that no finite text matches, because a part must contain itself. Raises BadSetting."""
    found = [part["$ref"] for part in schemas_in(schema) if isinstance(part.get("$ref"), str)]
    unread, ending, waiting = ["#", *dict.fromkeys(found)], set[str](), defaultdict[str, list[str]](list)

    def ends(part: object) -> bool:
        """Return whether a finite value may match; True also if only llguidance can decide this."""
        if not isinstance(part, Mapping) or among(part) is not None:
            return True
        if isinstance(reference := part.get("$ref"), str) and reference not in ending:
            waiting[reference].append(reader)
            return False
        for word, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
            if isinstance(given := part.get(word), list) and not enough(map(ends, given)):
                return False
        kinds = part.get("type") or "string"
        return any(all(map(ends, _needed(part, k))) for k in (kinds if isinstance(kinds, list) else [kinds]))

    while unread:
        reader = unread.pop()
        if reader not in ending and ends(_referred(reader, schema)):
            ending.add(reader)
            unread += waiting.pop(reader, ())
    if "#" not in ending:
        what = "the JSON schema matches no finite text, because a part of it must contain itself"
        raise BadSetting(what, hint="leave it out of `required`, or allow null or an empty list instead")


def _needed(schema: Mapping[str, Any], kind: object) -> list[object]:
    """Return the schemas of the parts that every value of a kind must have."""
    named, required = schema.get("properties"), schema.get("required")
    if kind == "object" and isinstance(named, dict) and isinstance(required, list):
        return [named[name] for name in required if isinstance(name, str) and name in named]
    first, least = schema.get("prefixItems", []), schema.get("minItems")
    if kind == "array" and isinstance(first, list) and isinstance(least, int):
        return [*first[:least], schema.get("items") if least > len(first) else None]
    return []


def depth(value: object) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, parts), default=0)


def narrowed(schema: dict[str, Any]) -> dict[str, Any]:
    """Narrow the schema where small models would write endlessly.

    Objects that name properties get no other properties, except with an allOf, whose closed parts could contradict
    each other. Numbers get at most 15 digits before the point and 9 after it. Texts with a format get a greatest
    length. Limits in the schema stay.
    """
    parts = list(schemas_in(schema))
    together = any("allOf" in part for part in parts)
    # Do not add FINEST to combined schemas, because llguidance uses the common multiple of every multipleOf.
    exact = any("multipleOf" in part for part in parts) and any(_COMBINING & part.keys() for part in parts)
    schema = deepcopy(schema)
    for part in list(schemas_in(schema)):
        closing = {"additionalProperties": False} if _only_names(part) and not together else {}
        part |= closing | _limits(part, decimals=not exact)
    return schema


def schemas_in(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if name in MAPS_OF_SCHEMAS and isinstance(inner, dict):
                yield from schemas_in([*inner.values()])
            elif name in SCHEMAS:
                yield from schemas_in(inner)
    elif isinstance(value, list):
        for part in value:
            yield from schemas_in(part)


def _limits(given: Mapping[str, Any], *, decimals: bool) -> dict[str, Any]:
    if {"enum", "const"} & given.keys():
        return {}
    kinds, longest = given.get("type"), _LONGEST.get(str(given.get("format")), 0)
    kinds = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    if longest and "maxLength" not in given and (not kinds or "string" in kinds):
        least = given.get("minLength")
        return {"maxLength": max(longest, least) if isinstance(least, int) else longest}
    if not kinds & {"number", "integer"}:
        return {}
    bounds = {name: given[name] for name in (*_LEAST, *_MOST) if name in given}
    if not all(isinstance(bound, int | float) for bound in bounds.values()):
        return {}
    low = {k: max(v, -WIDEST_NUMBER) for k, v in bounds.items() if k in _LEAST} or {"minimum": -WIDEST_NUMBER}
    high = {k: min(v, WIDEST_NUMBER) for k, v in bounds.items() if k in _MOST} or {"maximum": WIDEST_NUMBER}
    limits, least, most = low | high, max(low.values()), min(high.values())
    if max(least, -most) > WIDEST_NUMBER:
        return {}
    room = most - least
    if "number" not in kinds or "multipleOf" in given or not decimals:
        return limits
    if room < NARROWER and kinds == {"number"}:
        edges = {least, most} - {given.get("exclusiveMinimum"), given.get("exclusiveMaximum")}
        return {"enum": sorted({*edges, (least + most) / 2})} if room >= 0 else {}
    return {**limits, "multipleOf": FINEST if room >= NARROW else FINER}


def _only_names(schema: Mapping[str, Any]) -> bool:
    named, required = schema.get("properties"), schema.get("required", [])
    if not (isinstance(named, dict) and named and isinstance(required, list)):
        return False
    names_all = all(isinstance(name, str) and name in named for name in required)
    return names_all and "additionalProperties" not in schema and not _COMBINING & schema.keys()


def _check_multiples(schema: dict[str, Any]) -> None:
    """Refuse a multipleOf that would take minutes to compile. In combined schemas, check the common multiple."""
    together = 1
    combined = any(_COMBINING & part.keys() for part in schemas_in(schema))
    for part in schemas_in(schema):
        if isinstance(part.get("multipleOf"), int | float):
            digits = Decimal(str(part["multipleOf"])).as_tuple().digits  # the digits of 0.25 are those of 25
            value = int("".join(map(str, digits)) or 0) or 1
            together = lcm(together, value) if combined else value
            if together > LARGEST_MULTIPLE:
                what = f"multipleOf {part['multipleOf']} in the JSON schema takes too long to compile"
                raise BadSetting(what, hint="use a multipleOf with fewer digits")


def kind_of(value: object) -> str:
    """Return the JSON type of a value; integers are numbers."""
    kinds: dict[type, str] = {str: "string", bool: "boolean", int: "number", float: "number", list: "array"}
    return "null" if value is None else kinds.get(type(value), "object")


def among(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of a schema's `enum` or `const`; None without them."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any], levels: int = 10) -> Mapping[str, Any]:
    """Return a schema joined with those to which its `$ref` and `allOf` lead in `root`; {} if one leads nowhere.

    `levels`: the greatest number of steps from one schema to the next.
    """
    joined, reference = {k: v for k, v in schema.items() if k not in ("$ref", "allOf")}, schema.get("$ref")
    parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
    if reference is not None:
        parts.append(_referred(str(reference), root))
    for part in parts:
        if not isinstance(part, Mapping) or not levels:
            return {}
        part = resolved(part, root, levels - 1)
        together = {**part.get("properties", {}), **joined.get("properties", {})}
        needed = [*joined.get("required", ()), *part.get("required", ())]
        joined = {**part, **joined}
        joined |= {"properties": together} if together else {}
        joined |= {"required": [*dict.fromkeys(needed)]} if needed else {}
    return joined


def _referred(reference: str, root: Mapping[str, Any]) -> Any:  # noqa: ANN401  JSON
    """Return the part of `root` to which a `$ref` leads; None if it leads nowhere."""
    part: Any = root if reference.startswith("#") else None
    for step in filter(None, reference[1:].split("/")):
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        part = part.get(step) if isinstance(part, Mapping) else None
    return part


def kinds_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema names, with integers as numbers; an empty set allows all types."""
    schema = resolved(schema, root)
    if (given := among(schema)) is not None:
        return set(map(kind_of, given))
    named = schema.get("type")
    if named:
        names = named if isinstance(named, list) else [named]
        return {"number" if name == "integer" else str(name) for name in names}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            kinds = [kinds_of(part, root) for part in schema[word] if isinstance(part, Mapping)]
            return set().union(*kinds) if all(kinds) else set()
    return set()
