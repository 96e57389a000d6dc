"""Read calls from the text of a reply while it is written.

                          +------------- any other text --------------+
                          v                                           |
    text of a reply --> answer -- head --> key -- close --> behind ---+
                                           | ^                |
                                         key end              +-- head of the next call --> key
                                           v |
                                          value

    head           key            value   end           close
    <function=f>   <parameter=a>  5       </parameter>  </function>
    <tool_call>f                  {"a": 5}              </tool_call>

The reader is always in one of the states answer, key, value and behind. Each state has a method that reads one part.
The reader holds text back only while the text may be the beginning of a head, a key, an end or a close.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from localspec.events import Kind, ToolCall
from localspec.structure.delimiters import LONGEST, MORE, NO, Delimiters, first_text, follow, unfinished
from localspec.structure.schema import kinds_of
from localspec.structure.tool_call_format import ToolCallFormat, as_json

Functions = Mapping[str, Mapping[str, Any]]  # the JSON schemas of functions' parameters, by name
Change = Callable[[str], str]
_CODE = re.compile("[\ud800-\udfff]")  # a special token, encoded as a lone surrogate
_MARK = re.compile(rf"{_CODE.pattern}|\W{{0,3}}\w\w")  # the shortest beginning that shows a head


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the reply to show: text, or arguments of a call as JSON."""

    text: str
    kind: Kind
    call: ToolCall | None = None  # a call that begins here, without arguments yet
    ended: ToolCall | None = None  # a call that ends here, with its arguments or `unreadable` text


@dataclass(slots=True)
class _ValueState:
    """The state of the value that is being read."""

    piece_json: Change = lambda _: ""  # turns each new piece into JSON to emit
    last_json: Change = lambda _: ""  # turns the whole value at its end into JSON to emit
    depth: int = 1  # number of open brackets, including those around the arguments
    quote: str = ""  # the open quote
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _CallState:
    """A call that has begun. The reader is after it (`is_over`), inside its `value`, or at a key."""

    begun: ToolCall
    schema: Mapping[str, Any]  # the schema of the call's arguments
    json: list[str] = field(default_factory=list)  # pieces of the call's arguments, as JSON
    value: _ValueState | None = None
    is_over: bool = False

    def may_be(self, other: "_CallState") -> bool:
        return self.begun.name == other.begun.name and "".join(other.json).startswith("".join(self.json))

    def ended(self) -> ToolCall:
        written = "".join(self.json)
        try:
            return replace(self.begun, arguments=json.loads(written))
        except (ValueError, RecursionError):
            return replace(self.begun, unreadable=written)


def new_call(name: str) -> ToolCall:
    """Return a call without arguments; its id has nine letters and digits, because Mistral's templates require them."""
    return ToolCall(name, {}, secrets.token_hex(5)[:9])


def calls_in(text: str, form: ToolCallFormat, functions: Functions) -> tuple[tuple[ToolCall, ...], str]:
    """Return the complete calls in a text, and the answer around them."""
    reader = CallReader(form, functions)
    parts = [*reader.push(text), *reader.flush()]
    answer = "".join(part.text for part in parts if part.kind is Kind.ANSWER)
    return tuple(part.ended for part in parts if part.ended and not part.ended.unreadable), answer


class CallReader:
    """A reader that splits a reply into answers and calls, and emits each piece of a call as soon as it arrives."""

    def __init__(
        self, form: ToolCallFormat, functions: Functions, plain: Change = str, *, distinct: bool = False
    ) -> None:
        """`plain`: decodes special tokens in a text. `distinct`: whether a repeated call ends the reply."""
        self._delimiters, self._functions, self._plain = Delimiters(form, functions), functions, plain
        self._distinct, self._earlier = distinct, list[_CallState]()
        self.repeats = False  # whether the reply repeated a call; the call is dropped and ends the reply
        self._text, self._at = "", 0  # the text so far, and the reader's position in it
        self._blank: str | None = ""  # white space before the first answer or call; None after it
        self._call: _CallState | None = None  # None in an answer
        self._parts: list[TextPart] = []

    @property
    def held(self) -> str:
        return self._plain((self._blank or "") + self._text[self._at :])

    def push(self, text: str) -> list[TextPart]:
        self._text, self._at = self._text[self._at :] + text, 0
        while not self.repeats and self._advance():
            pass
        return self._taken()

    def _taken(self) -> list[TextPart]:
        """Return the new parts; return none while the current call may turn out to repeat an earlier one."""
        if (call := self._call) and not call.is_over and any(map(call.may_be, self._earlier)):
            return []
        parts, self._parts = self._parts, []
        return parts

    def flush(self, *, cut: bool = False) -> list[TextPart]:
        """Return the last parts. `cut`: whether the reply was cut off; if so, drop the beginning of a call."""
        held, self._text, self._at = self._text[self._at :] * (not self.repeats), "", 0
        start, call, delimiters = held.strip(), self._call, self._delimiters
        if call and not call.is_over:
            self._end_call(call, closed=not call.value and start.startswith(first_text(delimiters.later[1])))
            held = ""
        elif call:
            held = "" if cut or delimiters.form.end.strip().startswith(start) else held
        elif cut and _MARK.match(start) and delimiters.beginning.match(start):
            held = ""
        self._emit_answer(held)
        if self._blank:
            self._parts.append(TextPart(self._plain(self._blank), Kind.ANSWER))
        return self._taken()

    def _advance(self) -> bool:
        """Read one part in the present state; return False if more text is needed to decide."""
        call = self._call
        if not call:
            return self._read_answer()
        if call.is_over:
            return self._read_behind()
        return self._read_value(call, call.value) if call.value else self._read_key(call)

    def _read_answer(self) -> bool:
        head, name, done = NO, "", self._at
        while head == NO and (found := self._delimiters.beginning.search(self._text, done)):
            done = found.start()  # the end of the text, if the text has no head
            head, name = self._delimiters.head_at(self._delimiters.heads, self._text, done)
            done += head == NO
        self._emit_answer(self._text[self._at : done])
        self._at = done
        if head >= 0:
            self._begin_call(name, head)
        return head >= 0

    def _read_behind(self) -> bool:
        head, name = self._delimiters.head_at(self._delimiters.next_heads, self._text, self._at)
        end = follow(self._delimiters.end, self._text, self._at)
        if head >= 0:
            self._begin_call(name, head)
        elif end >= 0:
            self._at = end
        elif max(head, end) == NO:
            self._call = None
        return max(head, end) != MORE

    def _read_key(self, call: _CallState) -> bool:
        found: dict[str, str] = {}
        patterns = self._delimiters.later if call.json else self._delimiters.first
        key, close = (follow(pattern, self._text, self._at, found) for pattern in patterns)
        if close >= 0 or max(key, close) == NO:
            self._end_call(call, closed=close >= 0)
            self._at = max(self._at, close)
        elif key >= 0:
            self._at = key
            self._begin_value(call, found)
        return max(key, close) != MORE

    def _read_value(self, call: _CallState, value: _ValueState) -> bool:
        close = self._delimiters.form.arg_close
        end, after = self._end_by_close(close) if close else self._end_by_brackets(value)
        value.pieces.append(self._text[self._at : end])
        self._emit_json(call, value.piece_json(value.pieces[-1]))
        self._at = max(end, after)
        if after >= 0:
            self._emit_json(call, value.last_json("".join(value.pieces)))
            call.value = None
        return after >= 0

    def _end_by_close(self, close: str) -> tuple[int, int]:
        """Return the end of the value so far, and the position after its closing delimiter, or MORE.

        A value may contain its own closing delimiter. So it ends only if a key or the call's closing delimiter follows.
        """
        end = self._at - 1
        while (end := self._text.find(close, end + 1)) >= 0:
            after = end + len(close)
            verdict = max(follow(pattern, self._text, after) for pattern in self._delimiters.later)
            if verdict != NO:
                return end, after if verdict >= 0 else MORE
        return unfinished(close, self._text, self._at), MORE

    def _end_by_brackets(self, value: _ValueState) -> tuple[int, int]:
        form = self._delimiters.form
        for found in self._delimiters.signs.finditer(self._text, self._at):
            sign = found[0]
            if sign == "\\":  # the text ends inside an escape
                return found.start(), MORE
            if sign in (form.quote, '"') and value.quote in ("", sign):
                value.quote = "" if value.quote else sign
            elif not value.quote and sign[0] != "\\":
                ends = sign in ")]}" or (sign == "," and value.depth == 1)
                value.depth += (sign in "{[(") - ends
                if not value.depth:
                    end = found.end() if form.values == "json" else found.start()
                    return end, end
        return unfinished(form.quote, self._text, self._at), MORE

    def _begin_call(self, name: str, at: int) -> None:
        begun = new_call(name)
        self._call, self._at, self._blank = _CallState(begun, self._functions[name]), at, None
        self._parts.append(TextPart("", Kind.TOOL_CALL, begun))

    def _end_call(self, call: _CallState, *, closed: bool) -> None:
        """Emit the whole call; `closed`: whether its closing delimiter was read."""
        if closed and self._delimiters.form.values != "json":
            self._emit_json(call, "}" if call.json else "{}")
        call.is_over = True
        if any(call.may_be(each) and each.may_be(call) for each in self._earlier):
            self.repeats = True
            while self._parts.pop().call is not call.begun:
                pass
            return
        self._earlier += [call] if self._distinct else []
        self._parts.append(TextPart("", Kind.TOOL_CALL, ended=call.ended()))

    def _begin_value(self, call: _CallState, found: Mapping[str, str]) -> None:
        """Emit the key. The value follows piece by piece if it is a text or JSON, else as a whole."""
        form = self._delimiters.form
        if form.values == "json":
            self._at -= 1  # the bracket is part of the value
            call.value = _ValueState(partial(_CODE.sub, lambda code: self._escaped(code[0])), depth=0)
            return
        key = self._plain(found["key"].strip())
        schema = form.schema_of(key, found.get("type", ""), call.schema)
        quote = '"' * (form.values == "text" and kinds_of(schema, call.schema) == {"string"})
        self._emit_json(call, f"{', ' if call.json else '{'}{as_json(key)}: {quote}")
        if quote:
            call.value = _ValueState(self._escaped, lambda _: quote)
        else:
            read = partial(form.read, plain=self._plain, schema=schema, root=call.schema)
            call.value = _ValueState(last_json=lambda text: as_json(read(text)))

    def _escaped(self, text: str) -> str:
        return as_json(self._plain(text))[1:-1]

    def _emit_json(self, call: _CallState, text: str) -> None:
        if text:
            call.json.append(text)
            self._parts.append(TextPart(text, Kind.TOOL_CALL))

    def _emit_answer(self, text: str) -> None:
        """Emit an answer. Hold white space at the beginning of a reply, and drop it if a call follows."""
        text = (self._blank or "") + text
        if self._blank is not None and not text.strip() and len(text) <= LONGEST:
            self._blank = text
        elif text:
            self._blank = None
            self._parts.append(TextPart(self._plain(text), Kind.ANSWER))
