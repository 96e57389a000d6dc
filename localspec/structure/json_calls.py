"""Read calls that a model writes as JSON, although its chat template has another tool-call format.

    {"name": "f", "arguments": {"a": 5}}    one call, or a list of calls

A fence, or a tag of a known model family, may surround the JSON. The template of Qwen2.5-Coder shows doubled braces,
{{"name": ...}}, and the model copies them. Only the beginning of a reply can be these calls.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from localspec.events import Kind, ToolCall
from localspec.structure.constraint import byte_matcher
from localspec.structure.delimiters import Delimiters
from localspec.structure.layout import COMPACT, as_lark, json_rule
from localspec.structure.read_calls import CallReader, Change, Functions, TextPart, new_call
from localspec.structure.schema import resolved
from localspec.structure.tool_call_format import ToolCallFormat, as_json

if TYPE_CHECKING:
    from llguidance import LLMatcher

_ARGUMENTS = ("arguments", "parameters")  # keys of the arguments, by model family
_TAGS = ("tool_call", "tool_calls", "tools", "tool", "function_call", "response", "json", "xml")
_MARKS = [("{", "}"), *((f"<{tag}>", f"</{tag}>") for tag in _TAGS), ("<|tool_call|>", "<|/tool_call|>")]


class JsonCallReader(CallReader):
    """A reader that keeps back a text that may be calls in JSON, and reads any other text in the model's format."""

    def __init__(
        self, form: ToolCallFormat, functions: Functions, plain: Change = str, *, several: bool = True
    ) -> None:
        """`several`: whether a reply may have several calls; `plain`: decodes special tokens in a text."""
        super().__init__(form, functions, plain)
        self._several = several
        # The matcher of calls in JSON; None once it is known whether the reply begins with such calls.
        self._matcher: LLMatcher | None = _beginnings(tuple(functions)).deep_copy()
        self._json, self._matched = "", 0  # the text kept back; number of its bytes that the matcher has read
        self._called = False

    @property
    def held(self) -> str:
        return self._plain(self._json) + super().held

    def push(self, text: str) -> list[TextPart]:
        if self._matcher is None:
            return super().push(text)
        self._json += text
        space = len(self._json) - len(self._json.lstrip())
        if self._delimiters.head_at(self._delimiters.heads, self._json, space)[0] >= 0:
            self._matched = -1  # the text begins with a call in the model's format
            return self._decided()
        written = text.encode(errors="surrogatepass")
        self._matched += (taken := self._matcher.try_consume_tokens([*written]))
        return self._decided() if taken < len(written) or self._matcher.is_stopped() else []

    def flush(self, *, cut: bool = False) -> list[TextPart]:
        parts = self._decided() if self._matcher else []
        parts += super().flush(cut=cut)
        return [
            part for part in parts if part.kind is Kind.TOOL_CALL or part.text.strip() or not self._called
        ]

    def _decided(self) -> list[TextPart]:
        """Return the calls in the held text, then the text after them, without the end of a fence or tag."""
        text, self._json, self._matcher = self._json, "", None
        before, calls = re.split(r"\[|{(?!{)", text)[0], list[ToolCall]()
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(text, len(before))
            values = value if isinstance(value, list) else [value]
            if (self._several or len(values) == 1) and len(text[:end].encode()) <= self._matched:
                calls = [_read(each, self._functions) for each in values]
                text, self._called = text[end:], True
                for mark in [close for opening, close in (*_MARKS, ("```", "```")) if opening in before]:
                    text = re.sub(rf"\A\s*{re.escape(mark)}", "", text)
        if calls and not self._several:
            self._delimiters = Delimiters(self._delimiters.form, ())
        parts = [
            TextPart(as_json(call.arguments), Kind.TOOL_CALL, replace(call, arguments={}), call)
            for call in calls
        ]
        return parts + super().push(text)


@lru_cache(maxsize=8)
def _beginnings(names: Sequence[str]) -> "LLMatcher":
    """Compile the grammar of calls in JSON, each with the name of a function and any object as arguments."""
    kinds = {"name": {"enum": [*names]}, "type": {"const": "function"}, "id": {"type": "string"}}
    shapes = []
    for keys in (order for key in _ARGUMENTS for order in (("type", "name", key, "id"), (key, "name"))):
        properties = {key: kinds.get(key, {"type": "object"}) for key in keys}
        shape = {"type": "object", "properties": properties, "additionalProperties": False}
        shapes.append({**shape, "required": [key for key in keys if key not in ("type", "id")]})
    value = {"anyOf": [*shapes, {"type": "array", "items": {"anyOf": shapes}, "minItems": 1}]}
    tagged = [f"{as_lark(begin)} SPACE inner (SPACE {as_lark(end)})?" for begin, end in _MARKS]
    return byte_matcher(
        "start: SPACE (inner | /```[a-z_]{0,12}\\s/ SPACE inner (SPACE /```/)?)\n"
        f"inner: value | {' | '.join(tagged)}\nvalue: {json_rule(value)}\nSPACE: /\\s{{0,99}}/"
    )


def _read(call: Mapping[str, Any], functions: Functions) -> ToolCall:
    """Return a call with its arguments. Raises ValueError if its schema forbids them."""
    (arguments,) = (call[key] for key in _ARGUMENTS if key in call)
    schema = functions[call["name"]]
    matcher = byte_matcher(f"start: {json_rule(schema, **COMPACT, lenient=True)}")
    text = json.dumps(_sorted(arguments, schema, schema), separators=(",", ":"), ensure_ascii=False).encode()
    compiles = not matcher.is_error()  # a schema that does not compile allows any object, as in other forms
    if compiles and (matcher.try_consume_tokens([*text]) < len(text) or not matcher.is_accepting()):
        raise ValueError("the schema forbids the arguments")
    return replace(new_call(call["name"]), arguments=arguments)


def _sorted(value: Any, schema: object, root: Mapping[str, Any]) -> Any:  # noqa: ANN401  JSON
    """Sort the members of objects by their schema, because a grammar requires this order."""
    schema = resolved(schema if isinstance(schema, Mapping) else {}, root)
    for part in (each for word in ("anyOf", "oneOf", "allOf") for each in schema.get(word, ())):
        value = _sorted(value, part, root)
    if isinstance(value, list):
        return [_sorted(part, schema.get("items"), root) for part in value]
    named = schema.get("properties", {})
    keys = [key for key in dict.fromkeys([*named, *value]) if key in value] if isinstance(value, dict) else ()
    return {key: _sorted(value[key], named.get(key), root) for key in keys} if keys else value
