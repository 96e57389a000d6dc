"""Finds a model's way to write calls by comparing what its chat template renders."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from localspec.errors import LocalspecError
from localspec.events import ToolCall
from localspec.structure.call_form import COUNTER, ID, NAME, TYPE, CallForm
from localspec.structure.read_calls import calls_in
from localspec.structure.schema import kind_of

_common = os.path.commonprefix  # letter by letter
Render = Callable[[str, Sequence[ToolCall]], str]  # a prompt that ends with an assistant's answer and calls

_NAMES = ("lookup_q", "convert_z")
_KEYS = ("kaq", "kbz")
_VALUES = ("vaq", "vbz")
_ANSWER = "⁂"
_IDS = (("probe0001", "probe0002"), tuple(f"functions.{name}:{n}" for n, name in enumerate(_NAMES)))
_SEPARATORS = ((", ", ": "), (",", ":"))
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


_HAND: Sequence[tuple[str, CallForm]] = (  # the first whose sign stands in the template counts
    *(
        (sign, CallForm("", "(", ")", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>", "python",
                        arg_mid="=", arg_between=", ", quote="'"))
        for sign in ("<|tool_list_start|>", "List of tools: [")
    ),
    ("<|tool_call>call:", CallForm("<|tool_call>call:", "{", "}<tool_call|>", values="gemma",
                                   arg_mid=":", arg_between=",", quote='<|"|>')),
    ("<|channel|>commentary", CallForm(
        "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", between=None,
        other=(" to=functions.", "<|channel|>commentary json<|message|>"))),
    ("<atem:invoke", CallForm(
        " to=", f'<|message|><atem:function_calls>\n<atem:invoke name="{NAME}">',
        "\n</atem:invoke>\n</atem:function_calls>", between="<|eom|><|start|>assistant", values="text",
        arg_open='\n<atem:parameter name="', arg_mid='">', arg_close="</atem:parameter>")),
    ("only with <|tool_call|>", CallForm(
        '{"name": "', '", "arguments": ', "}", "<|tool_call|>[", ", ", "]")),
    ("<|open|>", CallForm(
        '<|open|>call tool="', f'" index="{COUNTER}"<|sep|>', "<|close|>call<|sep|>", "<|open|>tools<|sep|>", "",
        "<|close|>tools<|sep|>", "text", '<|open|>argument key="', f'" type="{TYPE}"<|sep|>',
        "<|close|>argument<|sep|>", types=tuple((kind, kind) for kind in _KINDS))),
    ("<｜tool▁outputs▁begin｜>", CallForm(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>")),
)  # fmt: skip


def form_of(source: str, render: Render, markers: Collection[str]) -> CallForm | None:
    """The form in which a model's template writes calls, or tells its model to; None where none is found.

    `markers`: of reasoning, which are no part of a call.
    """
    found = next((form for sign, form in _HAND if sign in source), None)
    return found or derive(render, markers)


def derive(render: Render, markers: Collection[str] = ()) -> CallForm | None:
    """The form in which a template writes calls.

    None if it writes none, or if calls written in the form found are not read back as they were.

    `render` raises LocalspecError for what the template refuses.
    """
    for ids in _IDS:
        with suppress(LocalspecError):
            found = _Comparison(render, ids, markers).form()
            # Without a mark in front a call could not be told from an answer.
            if found and found.begin + found.open and proves(found, render, ids):
                return found
    return None


def proves(form: CallForm, render: Render, ids: Sequence[str] = _IDS[0]) -> bool:
    """Whether nested calls that the template renders are read back as they were."""
    calls = [ToolCall(*call) for call in zip(_NAMES, _NESTED, ids, strict=True)]
    empty = [ToolCall(_NAMES[0], {}, ids[0])]
    asked = [[calls[0]], [calls[1]], empty] if form.between is None else [calls, calls[::-1], empty]
    for told in asked:
        read, _ = calls_in(render("", told), form, _SCHEMAS)
        if [(call.name, call.arguments) for call in read] != [(call.name, call.arguments) for call in told]:
            return False
    return True


class _Comparison:
    """What a template writes for one call, two calls, two arguments and a number."""

    def __init__(self, render: Render, ids: Sequence[str], markers: Collection[str]) -> None:
        self._render = render
        self._markers = "|".join(re.escape(marker.strip()) for marker in markers) or "(?!)"
        self._ids = ids

    def form(self) -> CallForm | None:
        self._before, _, self._after = self._render(_ANSWER, ()).partition(_ANSWER)
        one = self._body({_KEYS[0]: _VALUES[0]})
        found = self._json(one) or self._elements(one)
        return found and found.without(re.findall(r"<[^<>]+>", self._after)[:1])

    def _body(self, *arguments: Mapping[str, Any]) -> str:
        """What the template writes for calls with these arguments, without the turn around them."""
        calls = [ToolCall(*call) for call in zip(_NAMES, arguments, self._ids, strict=False)]
        text = self._render("", calls)
        start = len(common_start(self._before, text))
        end = len(common_end(self._after, text[start:]))
        text = re.sub(rf"\A(?:\s*(?:{self._markers}))*\n*", "", text[start : len(text) - end])
        for number in self._ids:
            text = text.replace(number, ID) if _NAMES[0] not in self._ids[0] else text
        return text

    def _two(self) -> str:
        """Two calls, or one where the template writes no more."""
        with suppress(LocalspecError):
            return self._body({_KEYS[0]: _VALUES[0]}, {_KEYS[1]: _VALUES[1]})
        return ""

    def _json(self, one: str) -> CallForm | None:
        for separators in _SEPARATORS:
            first, second = (
                json.dumps({key: value}, separators=separators)
                for key, value in zip(_KEYS, _VALUES, strict=True)
            )
            left, found, right = one.partition(first)
            if not found or _NAMES[0] not in left:
                continue
            opened, name_end = _around_name(left)
            middle = self._two().partition(first)[2].partition(second)[0]
            return _between(CallForm(opened, name_end, right, separators=separators), middle)
        return None

    def _elements(self, one: str) -> CallForm | None:
        left, found, _ = one.partition(_KEYS[0])
        both = self._body(dict(zip(_KEYS, _VALUES, strict=True)))
        if not found or _NAMES[0] not in left or _KEYS[1] not in both:
            return None
        opened, name_end = _around_name(left)
        mid, _, rest = one.partition(_KEYS[0])[2].partition(_VALUES[0])
        middle = both.partition(_VALUES[0])[2].partition(_KEYS[1])[0]
        arg_open = common_end(name_end, middle)
        form = CallForm(
            opened,
            name_end.removesuffix(arg_open),
            rest.removeprefix(middle.removesuffix(arg_open)),
            values="text",
            arg_open=arg_open,
            arg_mid=mid,
            arg_close=middle.removesuffix(arg_open),
        )
        if form.arg_close and not rest.startswith(form.arg_close):
            return None
        middle = self._two().partition(_VALUES[0] + form.arg_close)[2].partition(_KEYS[1])[0]
        return self._with_kinds(self._with_empty(_between(form, middle.removesuffix(arg_open))))

    def _with_empty(self, form: CallForm) -> CallForm:
        """A call without arguments shows whether the white space before one stands before each, or between them."""
        space = form.arg_open[: len(form.arg_open) - len(form.arg_open.lstrip())]
        if self._body({}) == form.written([(_NAMES[0], {})]) or not space:
            return form
        moved = replace(
            form, name_end=form.name_end + space, arg_open=form.arg_open.lstrip(), arg_between=space
        )
        return moved if self._body({}) == moved.written([(_NAMES[0], {})]) else form

    def _with_kinds(self, form: CallForm) -> CallForm:
        """A type that stands beside the value, and texts between the marks of CDATA."""
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
    """What stands before and behind a call's name, where it may stand again."""
    before, _, after = text.partition(_NAMES[0])
    return before, after.replace(_NAMES[0], NAME)


def _between(form: CallForm, middle: str) -> CallForm:
    """The form with what begins and ends calls told from what stands around them, from the text between two."""
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
    """Two texts with a hole where the first has a number and the second the next."""
    first, second = re.search(number, one), re.search(number, two)
    if not first or not second or int(second[0]) != int(first[0]) + 1:
        return one, two
    parts = ((text, found.span()) for text, found in ((one, first), (two, second)))
    one, two = (text[:start] + COUNTER + text[end:] for text, (start, end) in parts)
    return one, two


def common_start(one: str, other: str) -> str:
    """The beginning that two texts share, not cut inside a tag."""
    shared = _common([one, other])
    for text in (one, other):
        opened = shared.rfind("<")
        if opened > shared.rfind(">") and ">" in text[len(shared) :].partition("<")[0]:
            shared = shared[:opened]
    return shared


def common_end(one: str, other: str) -> str:
    """The end that two texts share, not cut inside a tag."""
    shared = _common([one[::-1], other[::-1]])[::-1]
    for text in (one, other):
        closed = shared.find(">")
        before = text[: len(text) - len(shared)]
        if closed >= 0 and "<" not in shared[:closed] and before.rfind("<") > before.rfind(">"):
            shared = shared[closed + 1 :]
    return shared
