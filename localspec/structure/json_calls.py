"""Reads calls that a model writes as JSON, although its chat template has another tool-call format.

    {"name": "f", "arguments": {"a": 5}}    one call, or a list of calls

A fence or a tag of a known model family may surround the JSON. A reply has these calls only at its beginning.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from localspec.events import Kind
from localspec.structure.constraint import on_deep_stack
from localspec.structure.layout import as_lark
from localspec.structure.read_calls import CallReader, Change, Functions, TextPart, new_call
from localspec.structure.schema import resolved
from localspec.structure.tool_call_format import as_json

if TYPE_CHECKING:
    from llguidance import LLMatcher

_ARGUMENTS = ("arguments", "parameters")  # keys of the arguments, by model family
_TAGS = ("tool_call", "tool_calls", "tools", "tool", "function_call", "response", "json", "xml")
_MARKS = [*((f"<{tag}>", f"</{tag}>") for tag in _TAGS), ("<|tool_call|>", "<|/tool_call|>")]


class JsonCallReader:
    """Holds a reply while it may be calls in JSON, and passes any other text to the reader of the model's format."""

    def __init__(
        self, reader: CallReader, functions: Functions, plain: Change = str, *, several: bool = True
    ) -> None:
        """`several`: whether a reply may have several calls; `plain`: decodes special tokens in a text."""
        self._reader, self._functions, self._plain, self._several = reader, functions, plain, several
        self._matcher: LLMatcher | None = _beginnings(tuple(functions)).deep_copy()  # None once it is decided
        self._text, self._matched = "", 0  # the held text, and how many of its bytes the matcher has followed
        self._called = False

    @property
    def repeats(self) -> bool:
        return self._reader.repeats

    @property
    def held(self) -> str:
        return self._plain(self._text) + self._reader.held

    def push(self, text: str) -> list[TextPart]:
        if self._matcher is None:
            return self._reader.push(text)
        self._text += text
        if self._reader.begins_with(self._text):
            return self._decided((), 0)
        written = text.encode(errors="surrogatepass")
        taken = self._matcher.try_consume_tokens([*written])
        self._matched += taken
        decided = taken < len(written) or self._matcher.is_stopped()
        return self._decided(*self._calls()) if decided else []

    def flush(self, *, cut: bool = False) -> list[TextPart]:
        parts = self._decided(*self._calls()) if self._matcher else []
        parts += self._reader.flush(cut=cut)
        return [
            part for part in parts if part.kind is Kind.TOOL_CALL or part.text.strip() or not self._called
        ]

    def _calls(self) -> tuple[Sequence[tuple[str, Any]], int]:
        """Return names and arguments of the calls that the held text begins with, and the position behind them."""
        with suppress(ValueError, RecursionError):
            begin = re.search(r"[\[{]|\Z", self._text)
            value, end = json.JSONDecoder().raw_decode(self._text, begin.start() if begin else 0)
            calls = value if isinstance(value, list) else [value]
            if (self._several or len(calls) == 1) and len(self._text[:end].encode()) <= self._matched:
                return [_read(call, self._functions) for call in calls], end
        return (), 0

    def _decided(self, calls: Sequence[tuple[str, Any]], end: int) -> list[TextPart]:
        """Emit the calls, and pass the text behind them on without the end of a fence or tag."""
        text, self._text, self._matcher, self._called = self._text, "", None, bool(calls)
        before, behind = re.split(r"[\[{]", text[:end])[0], text[end:]
        for mark in [close for opening, close in (*_MARKS, ("```", "```")) if opening in before]:
            behind = re.sub(rf"\A\s*{re.escape(mark)}", "", behind)
        if calls and not self._several:
            self._reader = self._reader.without_calls()
        begun = [(new_call(name), arguments) for name, arguments in calls]
        parts = [
            TextPart(as_json(arguments), Kind.TOOL_CALL, call, replace(call, arguments=arguments))
            for call, arguments in begun
        ]
        return parts + self._reader.push(behind)


@lru_cache(maxsize=8)
def _beginnings(names: Sequence[str]) -> "LLMatcher":
    """Compile the grammar of JSON that names one of the functions, with objects for arguments."""
    kinds = {"name": {"enum": [*names]}, "type": {"const": "function"}, "id": {"type": "string"}}
    shapes = []
    for keys in (order for key in _ARGUMENTS for order in (("type", "name", key, "id"), (key, "name"))):
        properties = {key: kinds.get(key, {"type": "object"}) for key in keys}
        shape = {"type": "object", "properties": properties, "additionalProperties": False}
        shapes.append({**shape, "required": [key for key in keys if key not in ("type", "id")]})
    value = {"anyOf": [*shapes, {"type": "array", "items": {"anyOf": shapes}, "minItems": 1}]}
    tagged = [f"{as_lark(begin)} SPACE value (SPACE {as_lark(end)})?" for begin, end in _MARKS]
    return _matcher(
        "start: SPACE (inner | /```[a-z_]{0,12}\\s/ SPACE inner (SPACE /```/)?)\n"
        f"inner: value | {' | '.join(tagged)}\nvalue: %json {json.dumps(value)}\nSPACE: /\\s{{0,99}}/"
    )


def _matcher(grammar: str) -> "LLMatcher":
    from llguidance import LLMatcher, LLTokenizer

    text = json.dumps({"grammars": [{"lark_grammar": grammar}]})
    return on_deep_stack(lambda: LLMatcher(LLTokenizer("byte"), text, log_level=0))


def _read(call: Mapping[str, Any], functions: Functions) -> tuple[str, Any]:
    """Return the name and the arguments of a call. Raises ValueError if its schema forbids them."""
    (arguments,) = (call[key] for key in _ARGUMENTS if key in call)
    schema = functions[call["name"]]
    given = {**schema, "x-guidance": {"whitespace_flexible": False, "lenient": True}}
    matcher = _matcher(f"start: %json {json.dumps(given)}")
    text = json.dumps(_sorted(arguments, schema, schema), separators=(",", ":"), ensure_ascii=False).encode()
    compiles = not matcher.is_error()  # a schema that does not compile allows any object, as in other forms
    if compiles and (matcher.try_consume_tokens([*text]) < len(text) or not matcher.is_accepting()):
        raise ValueError("the schema forbids the arguments")
    return call["name"], arguments


def _sorted(value: Any, schema: object, root: Mapping[str, Any]) -> Any:  # noqa: ANN401  JSON
    """Put the members of objects into the order of their schema, which a grammar requires."""
    schema = resolved(schema if isinstance(schema, Mapping) else {}, root)
    for part in (each for word in ("anyOf", "oneOf", "allOf") for each in schema.get(word, ())):
        value = _sorted(value, part, root)
    if isinstance(value, list):
        return [_sorted(part, schema.get("items"), root) for part in value]
    named = schema.get("properties", {})
    keys = [key for key in dict.fromkeys([*named, *value]) if key in value] if isinstance(value, dict) else ()
    return {key: _sorted(value[key], named.get(key), root) for key in keys} if keys else value
