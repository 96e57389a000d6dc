"""Write the grammar of replies that may or must call functions."""

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from localspec.structure.grammar import ANYTHING, Grammar, escaped, literal
from localspec.structure.layout import SPACED, Rules, as_lark, json_rule
from localspec.structure.read_calls import Functions
from localspec.structure.schema import among, kind_of, kinds_of, narrowed, resolved
from localspec.structure.tool_call_format import COUNTER, ID, NAME, TYPE, ToolCallFormat, parts_of

_HOLES = {ID: "/[A-Za-z0-9]{9}/", COUNTER: "/[0-9]{1,3}/"}
_KEY = "/[A-Za-z0-9_.-]{1,64}/"
_KINDS = ("string", "number", "boolean", "null", "array", "object")
DEEPEST = 6  # deepest nesting of values in formats without JSON
LONGEST_TEXT = 10_000  # characters; a larger maxLength in a schema is ignored


def calls_grammar(
    form: ToolCallFormat,
    functions: Functions,
    *,
    choice: str,
    names: Mapping[str, int],
    frames: Collection[str] = (),
    answer: Grammar | None = None,
    strict: bool = False,
) -> Grammar:
    """Write the grammar of a reply; `choice`: auto (text or calls), required (only calls) or none (only text).

    Arguments match their schemas as far as a grammar can express them. `names`: ids of special tokens by their texts.
    `frames`: texts that may separate an answer from calls. `answer`: the grammar of an answer. `strict`: whether
    arguments must match; if not, the grammar also has lenient rules, with any objects as arguments.
    """

    def rules(functions: Functions) -> str:
        return "\n".join(_Calls(form, functions, names).rules(choice, frames, answer))

    lenient = None if strict else partial(rules, {name: {"type": "object"} for name in functions})
    return Grammar("the grammar of the tools", rules(functions), lenient)


def _before_special(text: str, names: Mapping[str, int]) -> str:
    return min((text.partition(name)[0] for name in names), key=len, default=text)


class _Calls:
    def __init__(self, form: ToolCallFormat, functions: Functions, names: Mapping[str, int]) -> None:
        self._form, self._functions, self._names = form, functions, names
        self._lines: list[str] = []

    def rules(self, choice: str, frames: Collection[str], answer: Grammar | None) -> list[str]:
        form = self._form
        for n, schema in enumerate(self._functions.values()):
            values = _Values(form, schema, self._names, f"f{n}")
            self._lines += [f"args_{n}: {values.arguments()} {self._text(form.close)}", *values.lines]
        more = ""
        if form.between is not None:
            self._lines.append(f"more: {self._call(form.between + form.open)}")
            more = "more{0,15}"  # at most 16 calls, because small models may write endless calls
        # White space that separates calls may also follow the last call.
        between = form.between or ""
        space = "" if form.end else between[: len(between) - len(between.lstrip())]
        tail = f"{more} {f'{as_lark(space)}?' if space else ''} {self._text(form.end)}"
        other = f" | {self._call(*form.other)}" if form.other else ""
        first = f"({self._call(form.begin + form.open)}{other}) {tail}"
        text, before_calls = "TEXT", f"| {first}"
        head = form.begin + form.open + form.name_end
        plain_head = _before_special(head, self._names)
        headed = self._headed(tail) if plain_head == head else ""
        if form.tag and (headed or not plain_head) and choice != "none":
            self._lines.append(f"unclosed: {headed or f'/{ANYTHING}/ {first}'}")
        if answer is not None:
            self._lines.append(answer.rules.replace("start:", "answer:", 1))
            text = "answer"
        elif not headed:
            between = f"({' | '.join(self._text(mark.rstrip()) for mark in frames)})*" if frames else ""
            # If a call or wrapper has plain text before its first special token, no answer may begin with this text.
            marks = (form.begin + form.open, *(form.other or ())[:1], *frames)
            plain = [escaped(mark) for m in marks if (mark := _before_special(m, self._names))]
            other = f" & ~/({'|'.join(plain)})(?s:.*)/" if plain else ""
            self._lines.append(f"TEXT: /{ANYTHING}/{other}")
            before_calls = f"({between} {first})?" + (f" | {first}" if form.other else "")
        else:
            before_calls = f"| {headed}"
        start = {"required": first, "none": text}.get(choice) or f"{text} {before_calls}"
        return [f"start: {start}", *self._lines]

    def _text(self, text: str, name: str = "") -> str:
        text = text.replace(NAME, name)
        # The brace and the key are separate literals, because an answer in JSON may also begin with a brace.
        if brace := re.match(r'(\{)("[^"]*")', text):
            return " ".join(map(as_lark, (*brace.groups(), text[brace.end() :])))
        return " ".join(_HOLES.get(part) or literal(part, self._names) for part in parts_of(text)) or '""'

    def _call(self, before: str, name_end: str | None = None) -> str:
        end = self._form.name_end if name_end is None else name_end
        return " | ".join(
            f"{self._text(before + name + end, name)} args_{n}" for n, name in enumerate(self._functions)
        )

    def _headed(self, tail: str) -> str:
        """Return the expression of a text that ends with calls, and add its rules. The rule TEXT is for other texts."""
        form = self._form
        mark = head = form.begin + form.open
        # An answer may mention a call's first tag. So a call begins only with this tag and the character after it.
        if form.tag and len(head) > len(form.tag) + 1:
            mark = head[: len(form.tag) + 1]
        inside, mark = head[len(mark) :], escaped(mark)
        if inside or not form.name_end:
            heads = f"head ({self._call(inside)})"
            self._lines.append(f"head[lazy]: /{ANYTHING}{mark}/")
        else:
            ends = [escaped(name + form.name_end.replace(NAME, name)) for name in self._functions]
            self._lines += [f"head_{n}[lazy]: /{ANYTHING}{mark}{end}/" for n, end in enumerate(ends)]
            heads = " | ".join(f"head_{n} args_{n}" for n in range(len(ends)))
            mark = f"{mark}({'|'.join(ends)})"
        self._lines.append(f"TEXT: /{ANYTHING}/ & ~/(?s:.*){mark}(?s:.*)/")
        return f"({heads}) {tail}"


class _Values(Rules):
    def __init__(
        self, form: ToolCallFormat, root: Mapping[str, Any], names: Mapping[str, int], prefix: str
    ) -> None:
        super().__init__(prefix)
        self._form, self._root, self._names = form, root, names

    def arguments(self) -> str:
        if self._form.values == "json":
            item, key = self._form.separators
            options = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
            return self._json(self._root, options)
        return self._object(self._root, self._form.arg_between)

    def _json(self, schema: Mapping[str, Any], options: Mapping[str, Any] = SPACED) -> str:
        definitions = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
        return self.rule(json_rule(narrowed({**definitions, **schema}), **options, lenient=True))

    def _object(self, schema: Mapping[str, Any], between: str, depth: int = 0) -> str:
        properties = schema.get("properties")
        required = given if isinstance(given := schema.get("required"), list) else ()
        if not isinstance(properties, Mapping) or not properties:
            if schema.get("additionalProperties") is False:
                return '""'
            free, more = (self._element(before, None, {}, depth) for before in ("", between))
            return f"({free} {more}*)?"
        members = sorted(properties.items()) if self._form.values == "gemma" else list(properties.items())
        # `first` and `after` match the remaining members; `after` begins with a separator.
        after = first = '""'
        for key, value in reversed(members):
            part, following = (self._element(before, key, value, depth) for before in ("", between))
            begun, needed = self.rule(f"{part} {after}"), key in required
            first = begun if needed else self.rule(f"{begun} | {first}")
            after = self.rule(f"{following if needed else f'({following})?'} {after}")
        return first

    def _element(self, before: str, key: str | None, schema: object, depth: int) -> str:
        """Return a rule for an argument with the text `before` it; with the key None, any key matches."""
        form, schema = self._form, schema if isinstance(schema, Mapping) else {}

        def opened(mid: str) -> str:
            start = before + form.arg_open
            if depth and form.values == "python":
                start, mid = f"{before}'", "': "
            if key is not None:
                return literal(start + key + mid, self._names)
            return f"{literal(start, self._names)} {_KEY} {literal(mid, self._names)}"

        close = form.arg_close
        if TYPE not in form.arg_mid:
            return self.rule(f"{opened(form.arg_mid)} {self._closed(schema, close, depth)}")
        own, end = kinds_of(schema, self._root), literal(close, self._names)
        kinds, choices = own or {kind for kind, _ in form.types}, []
        for word in dict.fromkeys(word for kind, word in form.types if kind in kinds):
            of_word = kinds & {kind for kind, one in form.types if one == word}
            given = schema if own and own <= of_word else {"type": sorted(of_word)}
            is_text = word == dict(form.types)["string"]
            value = self._text(schema, close) if is_text else f"{self._json(given)} {end}"
            choices.append(f"{opened(form.arg_mid.replace(TYPE, word))} {value}")
        return self.rule(" | ".join(choices))

    def _closed(self, schema: Mapping[str, Any], close: str, depth: int = 0) -> str:
        if self._form.values in ("python", "gemma"):
            return self._value(schema, depth)
        schema = resolved(schema, self._root)
        kinds = kinds_of(schema, self._root)
        if not kinds or "string" in kinds:
            return self._text(schema, close)
        if kinds <= {"boolean", "null"} and not schema.keys() & {"enum", "const"}:
            words = {"boolean": '"true" | "false" | "True" | "False"', "null": '"null" | "None"'}
            return f"({' | '.join(words[kind] for kind in sorted(kinds))}) {literal(close, self._names)}"
        return f"{self._json(schema)} {literal(close, self._names)}"

    def _text(self, schema: Mapping[str, Any], close: str) -> str:
        schema = resolved(schema, self._root)
        if given := self._among(schema):
            return f"{given} {literal(close, self._names)}"
        longest = schema.get("maxLength")
        size = f"{{0,{longest}}}" if isinstance(longest, int) and 0 <= longest < LONGEST_TEXT else "*"
        if self._form.values == "cdata":
            wrapped = self.rule(f"/(?s:.{size})\\]\\]>/", "[lazy]")
            return f'(/[^<&\\n]{size}/ | "<![CDATA[" {wrapped}) {literal(close, self._names)}'
        # Text never matches a special token, so the value ends where `close` has its first special token.
        before = _before_special(close, self._names)
        inside = f"/(?s:.{size})/" if not before else self.rule(f"/(?s:.{size}){escaped(before)}/", "[lazy]")
        return f"{inside} {literal(close[len(before) :], self._names)}"

    def _value(self, schema: Mapping[str, Any], depth: int = 0) -> str:
        form, python = self._form, self._form.values == "python"
        schema = resolved(schema, self._root)
        if choices := self._among(schema):
            return choices
        kinds = kinds_of(schema, self._root)
        every, found = kinds or set(_KINDS), []
        if "string" in every and python:
            longest = schema.get("maxLength", "")
            found += [rf"/{quote}([^{quote}\\]|\\[^\n]){{0,{longest}}}{quote}/" for quote in "'\""]
        elif "string" in every:
            found.append(f"{literal(form.quote, self._names)} {self._text(schema, form.quote)}")
        if "number" in every:
            found.append(self._json(schema if kinds == {"number"} else {"type": "number"}))
        words = [form.value(word) for word in (True, False, None) if kind_of(word) in every]
        found += map(as_lark, words)
        separator = ", " if python else ","
        if "array" in every and depth < DEEPEST:
            items = schema.get("items")
            item = self.rule(self._value(items if isinstance(items, Mapping) else {}, depth + 1))
            found.append(f'"[" ({item} ({as_lark(separator)} {item})*)? "]"')
        if "object" in every and depth < DEEPEST:
            found.append(f'"{{" {self.rule(self._object(schema, separator, depth + 1))} "}}"')
        if python and every & {"array", "object"}:
            found.append(self._json(schema if kinds else {"type": ["array", "object"]}))
        return f"({' | '.join(found)})"

    def _among(self, schema: Mapping[str, Any]) -> str:
        """Return the expression of an enum or a const; "" if the schema has none."""
        texts = [literal(self._form.value(value), self._names) for value in among(schema) or ()]
        return f"({' | '.join(texts)})" if texts else ""
