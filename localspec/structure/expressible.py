"""Leave out of a tool's schema the keywords that a grammar cannot express."""

import json
import re
from functools import lru_cache
from typing import Any

from localspec.errors import BadSetting
from localspec.structure.layout import json_rule
from localspec.structure.schema import MAPS_OF_SCHEMAS, SCHEMAS, check_complexity, check_ends, narrowed

_MOST_TRIES = 2_000  # a try takes about a millisecond
_DEFINITIONS = ("$defs", "definitions")
# `required` comes first, because with it an impossible property makes the schema fail. Those in _LAST come last.
_FIRST, _LAST = ("required",), ("additionalProperties", *_DEFINITIONS)
_IGNORED = re.compile(r"Unimplemented keys: \[(.*)\]|Unknown format: ")
_CACHED = 20_000  # longest schema to cache, in characters; in memory it takes up to 50 times its text


def expressible(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the schema in a JSON text without the keywords that a grammar cannot express, and these keywords."""
    return _known(text) if len(text) <= _CACHED else _expressible(text)


def _expressible(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the whole schema if a grammar can express it. If not, build it again, keyword by keyword."""
    found, left_out, tries = dict[str, Any](), list[str](), 0

    def fits() -> bool:
        nonlocal tries
        tries += 1
        return tries <= _MOST_TRIES and ignored_in(found["schema"]) is not None

    def put(place: Any, name: Any, value: Any) -> None:  # noqa: ANN401  JSON
        """Put a schema into the dictionary or list `place`, without the parts that a grammar cannot express."""
        place[name] = value
        if fits():
            return
        given = value if isinstance(value, dict) else {}
        left_out.extend([] if isinstance(value, dict) else [str(name)])
        named = [key for key in _DEFINITIONS if isinstance(given.get(key), dict)]
        made: dict[str, Any] = {key: {each: {} for each in given[key]} for key in named}
        place[name] = made
        rest = [key for key in given if key not in (*_FIRST, *_LAST)]
        for key in filter(given.__contains__, (*_FIRST, *rest, *_LAST)):
            empty, part = made.get(key, {}), given[key]
            made[key] = part
            if fits():
                continue
            if key in ("items", "additionalProperties") and isinstance(part, dict):
                put(made, key, part)
            elif key in SCHEMAS and key != "items" and isinstance(part, list):
                made[key] = []
                for n, each in enumerate(part):
                    made[key].append({})
                    put(made[key], n, each)
            elif key in MAPS_OF_SCHEMAS and isinstance(part, dict):
                made[key] = {each: empty.get(each, {}) for each in part}
                for each in part if fits() else ():
                    put(made[key], each, part[each])
            if not fits():
                del made[key]
                left_out.append(key)

    put(found, "schema", json.loads(text))
    schema = found["schema"]
    return schema, tuple(dict.fromkeys((*left_out, *(ignored_in(schema) or ()))))


_known = lru_cache(maxsize=256)(_expressible)


def ignored_in(schema: Any) -> tuple[str, ...] | None:  # noqa: ANN401  JSON
    """Return the keywords that llguidance ignores in a schema; None if it is invalid or matches no text."""
    from localspec.structure.constraint import byte_matcher  # imported late, because it loads numpy

    try:
        check_complexity(schema)
        check_ends(schema)
        matcher = byte_matcher(f"start: {json_rule(narrowed(schema), lenient=True)}")
    except (BadSetting, AttributeError, TypeError, ValueError):
        return None  # a keyword has a value of a wrong type
    if matcher.is_error():
        return None
    found = filter(None, map(_IGNORED.match, matcher.get_grammar_warnings()))
    return tuple(name for each in found for name in re.findall(r'"([^"]*)"', each[1] or '"format"'))
