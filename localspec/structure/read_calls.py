"""Calls read from what a model writes, as it comes."""

import ast
import json
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from localspec.events import Kind, ToolCall
from localspec.structure.call_form import COUNTER, ID, KEY, NAME, TYPE, CallForm, parts_of
from localspec.structure.schema import kind_of, kinds_of

Functions = Mapping[str, Mapping[str, Any]]  # the JSON schemas of functions' parameters, by name
MORE: Final = -1  # the text is too short to say
NO: Final = -2
_SPACE = " "
_ANY = {ID: re.compile(r"[\w.:-]*"), COUNTER: re.compile(r"\d*"), TYPE: re.compile(r"\w*")}
_MARK = re.compile(r"[\ud800-\udfff]|\W{0,3}\w\w")
_CODE = re.compile("[\ud800-\udfff]")
_LONGEST_KEY = 200  # characters
_BRACKETS = {"{": 1, "[": 1, "(": 1, "}": -1, "]": -1, ")": -1}
_WORDS = {"True": True, "False": False, "None": None}
_BARE_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:")


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that is complete enough to show; of a call, it is a piece of its arguments as JSON."""

    text: str
    kind: Kind
    call: ToolCall | None = None  # begins here, without arguments yet
    ended: ToolCall | None = None  # ends here, with all of them


def calls_in(text: str, form: CallForm, functions: Functions) -> tuple[tuple[ToolCall, ...], str]:
    """The complete calls in a text, and the rest: an answer, and a call that was cut or is none."""
    reader = CallReader(form, functions)
    parts = [*reader.push(text), *reader.flush()]
    said = "".join(part.text for part in parts if part.kind is Kind.ANSWER)
    return tuple(part.ended for part in parts if part.ended), said + reader.rest


def new_call_id() -> str:
    """Nine letters and digits, which is what Mistral's templates insist on; programs take equal ids for one call."""
    return secrets.token_hex(5)[:9]


def pattern_of(text: str) -> list[str]:
    """A form's text in parts, between which white space is free."""
    return [
        part if part.strip() else _SPACE
        for piece in parts_of(text)
        for part in re.split(r"(\s+)", piece)
        if part
    ]


def follow(pattern: Iterable[str], text: str, at: int, found: dict[str, str]) -> int:
    """Where a pattern that begins at a place ends; MORE or NO."""
    parts = list(pattern)
    for n, part in enumerate(parts):
        if part == _SPACE:
            while at < len(text) and text[at].isspace():
                at += 1
        elif part in _ANY:
            match = _ANY[part].match(text, at)
            assert match, "the pattern matches the empty text"
            found[part], at = match[0], match.end()
        elif part == KEY:
            end = text.find(parts[n + 1], at)
            key = text[at : end if end >= 0 else len(text) - unfinished(text[at:], parts[n + 1])]
            if len(key) > _LONGEST_KEY or re.search(r"[\n<>{}()\[\]]", key.rstrip()):
                return NO
            if end < 0:
                return MORE
            found[KEY], at = key.strip(), end
        elif text.startswith(part, at):
            at += len(part)
        else:
            return MORE if part.startswith(text[at:]) else NO
    return at


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands in front of a call's arguments."""

    before: Sequence[str]  # its pattern up to the name
    after: Mapping[str, Sequence[str]]  # from there, by name

    @property
    def anchor(self) -> str:
        return next((part for part in self.before if part != _SPACE), "")

    def match(self, text: str, at: int, nexts: Sequence[Sequence[str]]) -> tuple[int, str]:
        """Where the arguments begin, and the function's name."""
        at = follow(self.before, text, at, {})
        found = [(follow(after, text, at, {}), name) for name, after in self.after.items()] if at >= 0 else []
        best = (at if at < 0 else NO), ""
        for end, name in found:
            verdicts = [follow(pattern, text, end, {}) for pattern in nexts] if end >= 0 else [end]
            end = max(end, MORE) if max(verdicts) >= 0 else max(verdicts)
            best = max(best, (end, name))
        return best


class CallReader:
    """Splits an answer from calls: what was read of a call is handed on at once, and nothing is taken back."""

    def __init__(
        self, form: CallForm, functions: Functions, plain: Callable[[str], str] = lambda text: text
    ) -> None:
        """`plain` makes a text that is handed on from one that was pushed."""
        self._form = form
        self._functions = functions
        self._plain = plain
        element = [*pattern_of(form.arg_open), KEY, *parts_of(form.arg_mid)]
        between = [*pattern_of(form.arg_between), *element] if form.arg_between else element
        close = pattern_of(form.close)
        json_form = form.values == "json"
        self._close = close
        self._nexts = [["{"]] if json_form else [element, close]
        self._later = [between, close]
        first = self._head(form.begin + form.open, form.name_end)
        others = [self._head(*form.other)] if form.other else []
        self._following = (
            [] if form.between is None else [self._head(form.between + form.open, form.name_end)]
        )
        self._heads = [first, *others]
        self._anchors = re.compile("|".join(re.escape(head.anchor) for head in self._heads))
        self._state: Callable[[], bool] = self._seek
        self._held = ""
        self._raw = ""  # of a call, as far as it was read
        self._parts: list[TextPart] = []
        self._broken = False  # the arguments are no JSON
        self.rest = ""  # what was begun as a call and is none

    def push(self, text: str) -> list[TextPart]:
        """What can be told apart now, in order."""
        self._held += text
        while self._held and self._state():
            pass
        self._parts, parts = [], self._parts
        return parts

    def flush(self) -> list[TextPart]:
        """What was held back, when no more text follows."""
        held, self._held = self._held, ""
        match self._state:
            case self._seek if not self._marked(held):
                self._say(held)
            case self._after if self._form.end.strip().startswith(held.strip()):
                pass
            case self._close_call if not self._broken:
                pass
            case self._element if held.lstrip().startswith(next(filter(str.strip, self._close), "\0")):
                self._end_call()
            case _:
                self._lose(self._raw + held)
        self._state, self._raw = self._seek, ""
        self._parts, parts = [], self._parts
        return parts

    def _head(self, before: str, name_end: str) -> _Head:
        after = {name: [name, *pattern_of(name_end.replace(NAME, name))] for name in self._functions}
        return _Head(pattern_of(before), after)

    def _marked(self, held: str) -> bool:
        """Whether a text is more likely the beginning of a call that was cut than the end of an answer."""
        held = held.lstrip()
        anchors = [head.anchor for head in self._heads]
        begun = any(anchor.startswith(held) or held.startswith(anchor) for anchor in anchors)
        return begun and bool(_MARK.match(held))

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(TextPart(self._plain(text), Kind.ANSWER))

    def _lose(self, text: str) -> None:
        """Keep what was begun as a call and is none."""
        self.rest += self._plain(text)
        self._raw = ""

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        self._raw += taken
        return taken

    def _seek(self) -> bool:
        """Look for a call; what cannot be the beginning of one is the answer."""
        text, at = self._held, 0
        while True:
            for head in self._heads:
                end, name = head.match(text, at, self._nexts)
                if end >= 0:
                    self._say(text[:at].rstrip(" ") if head.before[:1] == [_SPACE] else text[:at])
                    self._held = text[at:]
                    return self._begin_call(end - at, name)
                rest = text[at:].lstrip()
                if end == MORE and (rest.startswith(head.anchor) or head.anchor.startswith(rest)):
                    self._say(text[:at])
                    self._held = text[at:]
                    return False
            found = self._anchors.search(text, at + 1)
            if found is None:
                break
            at = found.start()
        keep = max(unfinished(text[at + 1 :], head.anchor) for head in self._heads)
        self._say(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return False

    def _begin_call(self, size: int, name: str) -> bool:
        self._raw = ""
        self._take(size)
        self._call = ToolCall(name, {}, new_call_id())
        self._schema = self._functions[name]
        self._arguments = ""
        self._depth, self._quoted = 0, False
        self._parts.append(TextPart("", Kind.TOOL_CALL, self._call))
        self._state = self._json if self._form.values == "json" else self._element
        return True

    def _grow(self, text: str) -> None:
        if text:
            self._arguments += text
            self._parts.append(TextPart(text, Kind.TOOL_CALL))

    def _end_call(self) -> bool:
        """The arguments are complete."""
        if self._form.values != "json":
            self._grow("}" if self._arguments else "{}")
        self._state = self._close_call
        try:
            arguments = json.loads(self._arguments)
        except (ValueError, RecursionError):
            self._broken = True
            return True
        self._raw = ""
        call = ToolCall(self._call.name, arguments, self._call.id)
        self._parts.append(TextPart("", Kind.TOOL_CALL, ended=call))
        return True

    def _json(self) -> bool:
        """All arguments as one object; half an escape waits for the other half."""
        end = len(self._held)
        for found in re.finditer(r'\\.?|["{}\[\]]', self._held, re.DOTALL):
            sign = found[0]
            if sign == "\\":
                end = found.start()
            elif sign == '"':
                self._quoted = not self._quoted
            elif not self._quoted and len(sign) == 1:
                self._depth += _BRACKETS[sign]
                if not self._depth:
                    end = found.end()
                    break
        # Control tokens stand in texts.
        self._grow(_CODE.sub(lambda code: json.dumps(self._plain(code[0]))[1:-1], self._take(end)))
        return not self._depth and self._end_call()

    def _element(self) -> bool:
        """The next argument, or the end of all."""
        found: dict[str, str] = {}
        element, close = self._later if self._arguments else self._nexts
        end = follow(element, self._held, 0, found)
        ends = follow(close, self._held, 0, {})
        if ends >= 0:
            self._end_call()
            self._take(ends)
            self._raw, self._state = "", self._after
            return True
        if end >= 0:
            self._take(end)
            return self._begin_value(found)
        if max(end, ends) == MORE:
            return False
        self._lose(self._raw)
        self._state = self._seek
        return True

    def _begin_value(self, found: Mapping[str, str]) -> bool:
        key = self._plain(found[KEY])
        kinds = {word: kind for kind, word in self._form.types if kind in ("string", "number")}
        properties = self._schema.get("properties")
        given = properties.get(key) if isinstance(properties, Mapping) else None
        self._part: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        self._text = kinds.get(found[TYPE]) == "string" if TYPE in found and kinds else None
        streams = self._form.values == "text" and self._text is not False
        self._streams = streams and (self._text or kinds_of(self._part, self._schema) == {"string"})
        self._value = ""
        start = f"{', ' if self._arguments else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._grow(start + ('"' if self._streams else ""))
        self._state = self._in_element if self._form.arg_close else self._literal
        return True

    def _in_element(self) -> bool:
        """A value up to what closes it, which a text may hold as well: only what can follow it tells."""
        close = self._form.arg_close
        at = self._held.find(close)
        while at >= 0:
            verdict = max(follow(then, self._held, at + len(close), {}) for then in self._later)
            if verdict != NO:
                self._add(self._take(at))
            if verdict >= 0:
                self._take(len(close))
                return self._end_value()
            if verdict == MORE:
                return False
            at = self._held.find(close, at + 1)
        self._add(self._take(len(self._held) - unfinished(self._held, close)))
        return False

    def _add(self, text: str) -> None:
        self._value += text
        if self._streams:
            self._grow(json.dumps(self._plain(text), ensure_ascii=False)[1:-1])

    def _literal(self) -> bool:
        """A value that ends where its brackets and quotes do."""
        depth, quote, at = 0, "", 0
        text = self._held
        quotes = (self._form.quote, '"') if self._form.values == "python" else (self._form.quote,)
        while at < len(text):
            if quote:
                at = _closing_quote(text, at, quote, escapes=self._form.values == "python")
                if at < 0:
                    return False
                quote = ""
                continue
            if not depth and text[at] in ",)}]":
                self._value = self._take(at)
                return self._end_value()
            depth += _BRACKETS.get(text[at], 0)
            quote = next((one for one in quotes if text.startswith(one, at)), "")
            at += len(quote) or 1
        return False

    def _end_value(self) -> bool:
        if self._streams:
            self._grow('"')
        else:
            self._grow(json.dumps(self._read_value(), ensure_ascii=False))
        self._state = self._element
        return True

    def _read_value(self) -> Any:  # noqa: ANN401  JSON
        text = self._value
        match self._form.values:
            case "python":
                return from_python(self._plain(text))
            case "gemma":
                return from_gemma(text, self._form.quote, self._plain)
            case "cdata":
                unwrapped = text.removeprefix("<![CDATA[").removesuffix("]]>")
                if unwrapped != text:
                    return self._plain(unwrapped)
        return self._plain(text) if self._text else typed(self._plain(text), self._part, self._schema)

    def _close_call(self) -> bool:
        end = follow(self._close, self._held, 0, {})
        if end == MORE:
            return False
        self._take(max(end, 0))
        self._lose(self._raw if self._broken else "")
        self._state, self._broken = self._after, False
        return True

    def _after(self) -> bool:
        """Between two calls, or behind the last."""
        if not self._held.strip():
            return False
        heads = [head.match(self._held, 0, self._nexts) for head in (*self._following, *self._heads)]
        end, name = max(heads)
        if end >= 0:
            return self._begin_call(end, name)
        ends = follow([_SPACE, *pattern_of(self._form.end)], self._held, 0, {}) if self._form.end else NO
        if ends >= 0:
            self._held = self._held[ends:]
        elif max(end, ends) == MORE:
            return False
        else:
            self._state = self._seek
        return True


def unfinished(text: str, pattern: str) -> int:
    """Length of the longest end of the text with which a pattern could begin."""
    sizes = range(min(len(pattern) - 1, len(text)), 0, -1)
    return next((size for size in sizes if pattern.startswith(text[-size:])), 0)


def _closing_quote(text: str, at: int, quote: str, *, escapes: bool) -> int:
    """Where a quoted text ends; -1 where it does not."""
    while (end := text.find(quote, at)) >= 0:
        slashes = len(text[at:end]) - len(text[at:end].rstrip("\\")) if escapes else 0
        if not slashes % 2:
            return end + len(quote)
        at = end + 1
    return -1


def from_python(text: str) -> Any:  # noqa: ANN401  JSON
    """A value that is written as in Python, or as in JSON; the text itself where it is neither."""
    text = text.strip()
    with warnings.catch_warnings(action="ignore"):  # of a backslash before any character
        for read in (json.loads, lambda given: ast.literal_eval(given.replace("\n", "\\n"))):
            try:
                return read(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] in "'\"" else text


def from_gemma(text: str, quote: str, plain: Callable[[str], str]) -> Any:  # noqa: ANN401  JSON
    """A value with bare keys and quotes of its own."""
    parts = [
        json.dumps(plain(part)) if n % 2 else _BARE_KEY.sub(r'\1"\2":', plain(part))
        for n, part in enumerate(text.split(quote))
    ]
    return from_python("".join(parts))


def typed(text: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:  # noqa: ANN401  JSON
    """What an element's text stands for, by its schema: a text stays as it is."""
    kinds = kinds_of(schema, root)
    if kinds == {"string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _WORDS.get(text.strip(), text)
        if value is text and kinds & {"object", "array"}:
            value = from_python(text)
    return value if not kinds or kind_of(value) in kinds else text
