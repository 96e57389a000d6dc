"""Tool calls told piece by piece are those that are read from the whole text."""

import json

import pytest

from localspec.events import Kind
from localspec.structure.call_form import HERMES
from localspec.structure.read_calls import CallReader, calls_in
from tests.structure.test_tools import FORMS

VALUES = [{"city": 'a "b" \\ {[', "list": [1, {"x": "]}"}]}, {}, {"é": "\\\\"}]
FUNCTIONS = {f"f.{number}": {"properties": {"city": {"type": "string"}}} for number in range(3)}


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_pieces_of_any_size_give_the_calls_of_the_whole(how, size):
    form = FORMS[how]
    text = form.written(list(zip(FUNCTIONS, VALUES[: 1 if form.between is None else 3], strict=False)))
    reader = CallReader(form, FUNCTIONS)
    parts = [part for at in range(0, len(text), size) for part in reader.push(text[at : at + size])]
    found = []
    for part in parts:
        if part.call:
            found.append([part.call.name, part.call.id, ""])
        found[-1][2] += part.text
    ended = [part.ended for part in parts + reader.flush() if part.ended]
    assert [(name, i, json.loads(text)) for name, i, text in found] == [
        (call.name, call.id, call.arguments) for call in ended
    ]
    calls, rest = calls_in(text, form, FUNCTIONS)
    assert [(call.name, call.arguments) for call in calls] == [(call.name, call.arguments) for call in ended]
    assert rest == ""


def test_a_call_that_is_cut_has_begun():
    first, second = CallReader(HERMES, {"f": {}}).push('<tool_call>\n{"name": "f", "arguments": {"a": "b')
    assert (first.call.name, second.text, second.kind) == ("f", '{"a": "b', Kind.TOOL_CALL)
