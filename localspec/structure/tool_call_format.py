"""Tool-call formats: the texts that a model writes around the names and arguments of calls."""

import ast
import json
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from localspec.structure.schema import kind_of, kinds_of

# Placeholders in the texts of a format; no real text has these characters.
ID, COUNTER, TYPE, NAME = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_HOLE = re.compile(f"([{ID}-{NAME}])")
_WORDS = {"True": True, "False": False, "None": None}
_TAG = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_BARE_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:")
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """The texts around calls: `begin`, calls with `between` between them, `end`.

    A call is `open`, its name, `name_end`, its arguments, `close`. An argument is `arg_open`, its key, `arg_mid`, its
    value, `arg_close`, with `arg_between` between arguments.
    """

    open: str
    name_end: str
    close: str = ""
    begin: str = ""
    between: str | None = ""  # text between two calls; None if the model writes at most one call
    end: str = ""
    values: str = "json"  # form of values: text, cdata, python, gemma; json: one object of all arguments
    arg_open: str = ""
    arg_mid: str = ""
    arg_close: str = ""
    arg_between: str = ""
    types: tuple[tuple[str, str], ...] = ()  # pairs of a JSON type and the name that replaces TYPE
    separators: tuple[str, str] = (", ", ": ")  # texts after an item and after a key in JSON
    quote: str = '"'  # the quotation mark around texts in a value
    other: tuple[str, str] | None = None  # another `open` and `name_end` that the model may write
    native: bool = True  # whether the chat template writes this format

    @property
    def texts(self) -> dict[str, str]:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "values"}
        return {name: value for name, value in values.items() if isinstance(value, str)}

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.texts.values(), *(self.other or ()))

    @property
    def tag(self) -> str:
        """The tag that begins a call; "" if calls begin with other text."""
        found = _TAG.match(self.begin + self.open)
        return found[0] if found else ""

    def with_texts(self, change: Callable[[str], str]) -> "ToolCallFormat":
        changed: dict[str, Any] = {name: change(text) for name, text in self.texts.items()}
        other = self.other and (change(self.other[0]), change(self.other[1]))
        return replace(self, **changed, other=other)

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        texts = [self._call(n, name, arguments) for n, (name, arguments) in enumerate(calls)]
        return self.begin + (self.between or "").join(texts) + self.end

    def without(self, ends: Collection[str]) -> "ToolCallFormat":
        """Return the format without `ends`, the texts of end tokens, and without the texts after them."""
        cut = re.compile("|".join(map(re.escape, ends)) or r"(?!)")
        between = None if self.between is None or cut.search(self.between) else self.between
        close, end = (cut.split(text, maxsplit=1)[0] for text in (self.close, self.end))
        return replace(self, close=close, between=between, end=end)

    def _call(self, number: int, name: str, arguments: Mapping[str, Any]) -> str:
        if self.values == "json":
            inside = json.dumps(arguments, ensure_ascii=False, separators=self.separators)
        else:
            members = sorted(arguments.items()) if self.values == "gemma" else arguments.items()
            inside = self.arg_between.join(self._element(key, value) for key, value in members)
        filled = {ID: "abcdefghi", COUNTER: str(number), NAME: name}
        before, after = (_HOLE.sub(lambda hole: filled[hole[0]], text) for text in (self.open, self.name_end))
        return before + name + after + inside + _HOLE.sub(lambda hole: filled[hole[0]], self.close)

    def _element(self, key: str, value: Any) -> str:  # noqa: ANN401  JSON
        kind = dict(self.types).get(kind_of(value), "")
        return self.arg_open + key + self.arg_mid.replace(TYPE, kind) + self.value(value) + self.arg_close

    def value(self, value: Any) -> str:  # noqa: ANN401  JSON
        match self.values, value:
            case "cdata", str() if re.search(r"[<&\n]", value):
                return f"<![CDATA[{value}]]>"
            case (("text" | "cdata"), str()):
                return value
            case "python", _:
                return repr(value)
            case "gemma", str():
                return self.quote + value + self.quote
            case "gemma", dict():
                return "{" + ",".join(f"{key}:{self.value(part)}" for key, part in value.items()) + "}"
            case "gemma", list():
                return "[" + ",".join(map(self.value, value)) + "]"
        return as_json(value)

    def inside(self, text: str) -> str:
        """Return a text as it is inside a value of this format: with escapes, without quotes around it."""
        return text if text in (written := self.value(text)) else written[1:-1]

    def schema_of(self, key: str, kind: str, root: Schema) -> Schema:
        """Return the schema of an argument; `kind`: its type in the call; `root`: the schema of all arguments."""
        words, properties = dict(self.types), root.get("properties")
        if kind == words.get("string") != words.get("number"):
            return {"type": "string"}
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        schema = schema if isinstance(schema, Mapping) else {}
        # In this form, the text 42 and the number 42 look the same.
        bare = self.values in ("text", "cdata") and not words
        return {"type": "string"} if bare and not kinds_of(schema, root) else schema

    def read(self, text: str, plain: Callable[[str], str], schema: Schema, root: Schema) -> Any:  # noqa: ANN401  JSON
        """Return an argument's value. `plain` decodes special tokens; `root` is the schema of all arguments."""
        match self.values:
            case "python":
                return from_python(plain(text))
            case "gemma":  # keys have no quotes, and texts have `quote` on both sides
                parts = [
                    as_json(plain(part)) if n % 2 else _BARE_KEY.sub(r'\1"\2":', plain(part))
                    for n, part in enumerate(text.split(self.quote))
                ]
                return from_python("".join(parts))
            case "cdata" if (unwrapped := text.removeprefix("<![CDATA[").removesuffix("]]>")) != text:
                return plain(unwrapped)
        text, kinds = plain(text), kinds_of(schema, root)
        if kinds == {"string"}:
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = _WORDS.get(text.strip(), text)
            if value is text and kinds & {"object", "array"}:
                value = from_python(text)
        return value if not kinds or kind_of(value) in kinds else text


def as_json(value: Any) -> str:  # noqa: ANN401  JSON
    return json.dumps(value, ensure_ascii=False)


def from_python(text: str) -> Any:  # noqa: ANN401  JSON
    """Return the value of a text in JSON's or Python's form. If it has neither, only remove quotes around it."""
    text = text.strip()
    with warnings.catch_warnings(action="ignore"):  # Python would show warnings about unknown escapes
        for read in (json.loads, lambda given: ast.literal_eval(given.replace("\n", "\\n"))):
            try:
                return read(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] in "'\"" else text


def parts_of(text: str) -> list[str]:
    """Split a text at its placeholders, and keep the placeholders as parts."""
    return [part for part in _HOLE.split(text) if part]


HERMES = ToolCallFormat('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n")
GENERIC = replace(HERMES, native=False)
