"""Derive a model's tool-call format by comparing calls that its chat template renders."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from localspec.errors import LocalspecError
from localspec.events import ToolCall
from localspec.structure.read_calls import calls_in
from localspec.structure.schema import kind_of
from localspec.structure.tool_call_format import COUNTER, ID, NAME, TYPE, ToolCallFormat

_common = os.path.commonprefix  # this function compares characters, not parts of paths
Render = Callable[[str, Sequence[ToolCall]], str]  # renders a prompt that ends with an answer and calls

_NAMES = ("lookup_q", "convert_z")
_KEYS = ("kaq", "kbz")
_VALUES = ("vaq", "vbz")
_ANSWER = "⁂"
_MIRRORED = str.maketrans("<>", "><")
_IDS = ("probe0001", "probe0002")
_KINDS: Mapping[str, Any] = {
    "string": _VALUES[0], "number": 3, "boolean": True, "array": [3], "object": {"x": 3}, "null": None
}  # fmt: skip
_NESTED: tuple[Mapping[str, Any], ...] = (
    {
        "text": 'a "b" \\ é\n</x> {',
        "deep": {"list": [1, "two", {"three": []}], "no": False},
        "size": -2.5,
        "on": True,
    },
    {"list": ["x", {"y": "}]"}], "whole": 12},
)
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    name: {"properties": {key: {"type": kind_of(value)} for key, value in arguments.items()}}
    for name, arguments in zip(_NAMES, _NESTED, strict=True)
}


_HAND: Sequence[tuple[str, ToolCallFormat]] = (  # texts in chat templates, and the formats of these templates
    *(
        (sign, ToolCallFormat("", "(", ")", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>", "python",
                        arg_mid="=", arg_between=", ", quote="'"))
        for sign in ("<|tool_list_start|>", "List of tools: [")
    ),
    ("<|tool_call>call:", ToolCallFormat("<|tool_call>call:", "{", "}<tool_call|>", values="gemma",
                                   arg_mid=":", arg_between=",", quote='<|"|>')),
    ("<|channel|>commentary", ToolCallFormat(
        "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", between=None,
        other=(" to=functions.", "<|channel|>commentary json<|message|>"))),
    ("<atem:invoke", ToolCallFormat(
        " to=", f'<|message|><atem:function_calls>\n<atem:invoke name="{NAME}">',
        "\n</atem:invoke>\n</atem:function_calls>", between="<|eom|><|start|>assistant", values="text",
        arg_open='\n<atem:parameter name="', arg_mid='">', arg_close="</atem:parameter>")),
    ("only with <|tool_call|>", ToolCallFormat(
        '{"name": "', '", "arguments": ', "}", "<|tool_call|>[", ", ", "]")),
    ("<|open|>", ToolCallFormat(
        '<|open|>call tool="', f'" index="{COUNTER}"<|sep|>', "<|close|>call<|sep|>", "<|open|>tools<|sep|>", "",
        "<|close|>tools<|sep|>", "text", '<|open|>argument key="', f'" type="{TYPE}"<|sep|>',
        "<|close|>argument<|sep|>", types=tuple((kind, kind) for kind in _KINDS))),
    ("<｜tool▁outputs▁begin｜>", ToolCallFormat(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>")),
)  # fmt: skip


def format_of(source: str, render: Render, markers: Collection[str] = ()) -> ToolCallFormat | None:
    """Return the template's tool-call format; None if the template writes no calls, or none that can be read back.

    `render` raises LocalspecError for messages that the template refuses. `markers`: texts around the reasoning.
    """
    if call_format := next((form for sign, form in _HAND if sign in source), None):
        return call_format
    with suppress(LocalspecError):
        call_format = _Comparison(render, markers).form()
        # Refuse a format without a delimiter before a call, because the call would look like an answer.
        if call_format and call_format.begin + call_format.open and _is_read_back(call_format, render):
            return call_format
    return None


def _is_read_back(form: ToolCallFormat, render: Render) -> bool:
    calls = [ToolCall(*call) for call in zip(_NAMES, _NESTED, _IDS, strict=True)]
    empty = [ToolCall(_NAMES[0], {}, _IDS[0])]
    for some in [[calls[0]], [calls[1]], empty] if form.between is None else [calls, calls[::-1], empty]:
        read, _ = calls_in(render("", some), form, _SCHEMAS)
        if [(call.name, call.arguments) for call in read] != [(call.name, call.arguments) for call in some]:
            return False
    return True


class _Comparison:
    def __init__(self, render: Render, markers: Collection[str]) -> None:
        self._render = render
        self._markers = "|".join(re.escape(marker.strip()) for marker in markers) or "(?!)"

    def form(self) -> ToolCallFormat | None:
        self._before, _, self._after = self._render(_ANSWER, ()).partition(_ANSWER)
        one = self._body({_KEYS[0]: _VALUES[0]})
        form = self._json(one) or self._elements(one)
        return form and form.without(re.findall(r"<[^<>]+>", self._after)[:1])

    def _body(self, *arguments: Mapping[str, Any]) -> str:
        """Return the text of calls with these arguments, without the text of the turn around them."""
        calls = [ToolCall(*call) for call in zip(_NAMES, arguments, _IDS, strict=False)]
        text = self._render("", calls)
        start = len(common_start(self._before, text))
        end = len(common_end(self._after, text[start:]))
        text = re.sub(rf"\A(?:\s*(?:{self._markers}))*\n*", "", text[start : len(text) - end])
        return text.replace(_IDS[0], ID).replace(_IDS[1], ID)

    def _two(self) -> str:
        with suppress(LocalspecError):
            return self._body({_KEYS[0]: _VALUES[0]}, {_KEYS[1]: _VALUES[1]})
        return ""  # some templates raise an error for two calls

    def _json(self, one: str) -> ToolCallFormat | None:
        for separators in ((", ", ": "), (",", ":")):
            pairs = zip(_KEYS, _VALUES, strict=True)
            first, second = (json.dumps({key: value}, separators=separators) for key, value in pairs)
            left, found, right = one.partition(first)
            if not found or _NAMES[0] not in left:
                continue
            opened, name_end = _around_name(left)
            middle = self._two().partition(first)[2].partition(second)[0]
            return _between(ToolCallFormat(opened, name_end, right, separators=separators), middle)
        return None

    def _elements(self, one: str) -> ToolCallFormat | None:
        left, found, _ = one.partition(_KEYS[0])
        both = self._body(dict(zip(_KEYS, _VALUES, strict=True)))
        if not found or _NAMES[0] not in left or _KEYS[1] not in both:
            return None
        opened, name_end = _around_name(left)
        mid, _, rest = one.partition(_KEYS[0])[2].partition(_VALUES[0])
        middle = both.partition(_VALUES[0])[2].partition(_KEYS[1])[0]
        arg_open = common_end(name_end, middle)
        name_end, arg_close = name_end.removesuffix(arg_open), middle.removesuffix(arg_open)
        if not rest.startswith(arg_close):
            return None
        form = ToolCallFormat(opened, name_end, rest[len(arg_close) :], values="text")
        form = replace(form, arg_open=arg_open, arg_mid=mid, arg_close=arg_close)
        middle = self._two().partition(_VALUES[0] + arg_close)[2].partition(_KEYS[1])[0]
        return self._with_kinds(self._with_empty(_between(form, middle.removesuffix(arg_open))))

    def _with_empty(self, form: ToolCallFormat) -> ToolCallFormat:
        """If a call without arguments has the white space of `arg_open`, move it to `name_end` and `arg_between`."""
        space = form.arg_open[: len(form.arg_open) - len(form.arg_open.lstrip())]
        if self._body({}) == form.written([(_NAMES[0], {})]) or not space:
            return form
        opened = form.arg_open.lstrip()
        moved = replace(form, name_end=form.name_end + space, arg_open=opened, arg_between=space)
        return moved if self._body({}) == moved.written([(_NAMES[0], {})]) else form

    def _with_kinds(self, form: ToolCallFormat) -> ToolCallFormat:
        """If the template writes CDATA, or names of types beside values, add them to the format."""
        mids = {}
        for kind, value in _KINDS.items():
            text = self._body({_KEYS[0]: value}).partition(_KEYS[0])[2]
            written = form.value(value)
            mids[kind] = text.partition(written + form.arg_close)[0] if written in text else form.arg_mid
        if "<![CDATA[" in self._body({_KEYS[0]: "a<b"}):
            form = replace(form, values="cdata")
        if len(set(mids.values())) == 1:
            return form
        start = re.match(r".*?(?=\w*$)", _common(list(mids.values())), re.DOTALL)
        before = start[0] if start else ""
        after = _common([mid[::-1] for mid in mids.values()])[::-1].lstrip("abcdefghijklmnopqrstuvwxyz")
        types = tuple((kind, mid[len(before) : len(mid) - len(after)]) for kind, mid in mids.items())
        return replace(form, arg_mid=before + TYPE + after, types=types)


def _around_name(text: str) -> tuple[str, str]:
    before, _, after = text.partition(_NAMES[0])
    return before, after.replace(_NAMES[0], NAME)


def _between(form: ToolCallFormat, middle: str) -> ToolCallFormat:
    """Separate the wrapper of all calls from the wrapper of each call; `middle`: the text between two calls."""
    middle, found, name_end = middle.partition(_NAMES[1])
    if not found:
        return replace(form, between=None)
    opened, middle = _counted(form.open, middle, r"\d+(?=\D*\Z)")
    name_end, _ = _counted(form.name_end, name_end, r"\d+")
    start = common_end(opened, middle)
    close = common_start(form.close, middle.removesuffix(start))
    return replace(
        form,
        begin=opened.removesuffix(start),
        open=start,
        name_end=name_end,
        close=close,
        end=form.close[len(close) :],
        between=middle.removesuffix(start)[len(close) :],
    )


def _counted(one: str, two: str, number: str) -> tuple[str, str]:
    """Replace the match of `number` in both texts by COUNTER, if the number in `two` is one higher."""
    first, second = re.search(number, one), re.search(number, two)
    if not first or not second or int(second[0]) != int(first[0]) + 1:
        return one, two
    parts = ((text, found.span()) for text, found in ((one, first), (two, second)))
    one, two = (text[:start] + COUNTER + text[end:] for text, (start, end) in parts)
    return one, two


def common_start(one: str, other: str) -> str:
    """Return the common prefix of two texts, shortened if it ends inside a tag."""
    shared = _common([one, other])
    for text in (one, other):
        opened = shared.rfind("<")
        if opened > shared.rfind(">") and ">" in text[len(shared) :].partition("<")[0]:
            shared = shared[:opened]
    return shared


def common_end(one: str, other: str) -> str:
    """Return the common suffix of two texts, shortened if it begins inside a tag."""
    mirrored = (text[::-1].translate(_MIRRORED) for text in (one, other))
    return common_start(*mirrored)[::-1].translate(_MIRRORED)
