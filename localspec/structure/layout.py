"""Write the grammar of JSON in a layout that the model chooses: compact, spaced, padded, or indented by depth.

The first white space decides the layout. From then on, the grammar forces white space and keys, at no cost.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from localspec.structure.schema import schemas_in

FLEXIBLE = {"whitespace_pattern": r"[ \n\r\t]{1,40}"}  # small models may write white space without end
COMPACT = {"whitespace_flexible": False}
SPACED = {**COMPACT, "item_separator": ", ", "key_separator": ": "}  # the white space of Python's json module
PADDED = ""  # in place of an indent: one line, with a space inside the braces of objects
INDENTS = ("  ", "    ", "\t")
DEEPEST = 6  # number of indented levels; deeper values stay on one line
MOST_RULES = 1_000  # largest number of rules; with a larger schema, limited white space is allowed anywhere
_REFERENCE = re.compile(r"#/(\$defs|definitions)/[^/]+")
_NOTES = {"title", "description", "default", "examples", "$schema", "$comment", "$defs", "definitions"}
_INDENTED: Mapping[str, Any] = {
    "type": (str, list), "properties": dict, "required": list, "additionalProperties": (bool, dict),
    "items": (bool, dict), "minItems": int, "maxItems": int, "uniqueItems": bool,
    "minProperties": int, "maxProperties": int,
}  # fmt: skip


def as_lark(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any], **options: Any) -> str:  # noqa: ANN401  JSON
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


class Rules:
    """Lark rules with names of a prefix and a number; equal rules have the same name."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._by_right = prefix, dict[str, str]()
        self.lines: list[str] = []

    def rule(self, right: str, options: str = "") -> str:
        """Return the name of the rule with this right side."""
        if options + right not in self._by_right:
            self._by_right[options + right] = name = f"{self._prefix}_{len(self._by_right)}"
            self.lines.append(f"{name}{options}: {right}")
        return self._by_right[options + right]


def in_layouts(schema: Mapping[str, Any], **options: bool) -> str:
    """Return Lark rules of JSON that matches a schema; "" if they are too many, or a `$ref` names no definition.

    An indented container has each of its parts on a separate line. A part that is a container may also be on one line.
    A padded object has a space inside its braces. Objects inside it may also have none.
    """
    if not all(_REFERENCE.fullmatch(str(part["$ref"])) for part in schemas_in(schema) if "$ref" in part):
        return ""
    layouts = _Layouts(schema, options)
    every = [layouts.whole(schema, COMPACT), layouts.whole(schema, SPACED)]
    every += filter(None, [layouts.indented(schema, indent, 0) for indent in (*INDENTS, PADDED)])
    lines = [f"start: {' | '.join(every)}", *layouts.lines]
    return "\n".join(lines) if len(lines) <= MOST_RULES else ""


class _Layouts(Rules):
    def __init__(self, root: Mapping[str, Any], options: Mapping[str, bool]) -> None:
        super().__init__("start")
        self._root, self._options = root, options
        self._definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        self._known: dict[tuple[str, str, int], str] = {}  # rules of containers, by schema, indent and depth

    def whole(self, schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        referred = self._definitions if '"$ref"' in json.dumps(schema) else {}
        return self.rule(json_rule({**referred, **schema}, **options, **self._options))

    def indented(self, schema: Mapping[str, Any], indent: str, depth: int) -> str:
        """Return the rule of containers with at least one part; "" if the schema has no simple containers."""
        key = (json.dumps(schema), indent, depth)
        if key not in self._known and depth < DEEPEST and len(self.lines) <= MOST_RULES:
            self._known[key] = ""  # ends the recursion for a schema that is its own alternative
            found = " | ".join(filter(None, self._containers(schema, indent, depth)))
            self._known[key] = found and self.rule(found)
        return self._known.get(key, "")

    def _containers(self, schema: Mapping[str, Any], indent: str, depth: int) -> list[str]:
        words = schema.keys() - _NOTES
        parts = next((schema[word] for word in ("anyOf", "oneOf") if words == {word}), None)
        if words == {"$ref"}:
            _, word, name = schema["$ref"].split("/")
            referred = self._root.get(word)
            parts = [referred.get(name) if isinstance(referred, Mapping) else None]
        if isinstance(parts, list):
            return [self.indented(part, indent, depth) for part in parts if isinstance(part, Mapping)]
        if not all(isinstance(schema[word], _INDENTED.get(word, ())) for word in words):
            return []
        kinds = schema.get("type", ("object", "array"))
        inside, outside = ("\n" + indent * levels if indent else " " for levels in (depth + 1, depth))
        between, containers = as_lark("," + inside), []
        for kind, inner, (start, end) in (("object", self._members, "{}"), ("array", self._items, "[]")):
            if kind == "array" and not indent:
                inside = outside = ""
            if kind in kinds and (text := inner(schema, indent, depth + 1, between)):
                containers.append(f"{as_lark(start + inside)} {text} {as_lark(outside + end)}")
        return containers

    def _value(self, schema: object, indent: str, depth: int) -> str:
        given = schema if isinstance(schema, Mapping) else {}
        found = self.whole(given, SPACED), self.indented(given, indent, depth)
        return f"({' | '.join(filter(None, found))})"

    def _items(self, schema: Mapping[str, Any], indent: str, depth: int, between: str) -> str:
        if schema.get("items") is False:
            return ""
        item = self._value(schema.get("items"), indent, depth)
        return _several(item, between, schema.get("minItems", 1), schema.get("maxItems"))

    def _members(self, schema: Mapping[str, Any], indent: str, depth: int, between: str) -> str:
        named, required = schema.get("properties") or {}, schema.get("required") or ()
        more = schema.get("additionalProperties", True)
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        if not named and more is not False and not required:
            member = f'{self.whole({"type": "string"}, SPACED)} ": " {self._value(more, indent, depth)}'
            return _several(member, between, least, most)
        counted = least > len(required) or (most is not None and most < len(named))
        unnamed = any(name not in list(named) for name in required)
        if more is not False or counted or unnamed or False in named.values():
            return ""
        first = after = ""  # rules of the remaining members, with none before them and after another one
        for name, value in reversed(named.items()):
            member = f"{as_lark(as_lark(name) + ': ')} {self._value(value, indent, depth)}"
            if name in required:
                first, after = f"{member} {after}", f"{between} {member} {after}"
            else:
                rest = self.rule(after) if after else ""
                first = self.rule(f"{member} {rest} | {first}") if first else f"{member} {rest}"
                after = f"({between} {member})? {rest}"
        return first


def _several(part: str, between: str, least: int, most: int | None) -> str:
    """Return the expression of one or more parts; "" if no part is allowed."""
    least, last = max(least, 1), "" if most is None else most - 1
    if most is not None and most < least:
        return ""
    return part if most == 1 else f"{part} ({between} {part}){{{least - 1},{last}}}"
