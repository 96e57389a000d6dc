"""Tool calls told piece by piece are those that are read from the whole text."""

import json

import pytest

from localspec.chat.text import CallReader
from localspec.chat.tools import GENERIC, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, calls_in

VALUES = [{"city": 'a "b" \\ {[', "list": [1, {"x": "]}"}]}, {}, {"é": "\\\\"}]


def written(how, count):
    calls = []
    for number, arguments in enumerate(VALUES[:count]):
        text = json.dumps(arguments, ensure_ascii=False)
        name = f"f.{number}"
        head = f"{name}{how.named}" if how.named else f'{{"name": "{name}", "{how.arguments_key}": '
        calls.append(f"{head}{text}" if how.named else f"{head}{text}}}")
    return how.opening + (how.between or "").join(calls) + how.closing


@pytest.mark.parametrize("how", [HERMES, GENERIC, MISTRAL, MISTRAL_NAMED, LLAMA], ids=lambda how: how.name)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_pieces_of_any_size_give_the_calls_of_the_whole(how, size):
    text = written(how, 3 if how.between else 1)
    reader = CallReader()
    parts = [part for at in range(0, len(text), size) for part in reader.push(text[at : at + size])]
    found = []
    for part in parts:
        if part.call:
            found.append([part.call.name, ""])
        found[-1][1] += part.text
    calls, rest = calls_in(text, how)
    assert [(name, json.loads(text)) for name, text in found] == [(c.name, c.arguments) for c in calls]
    assert rest == ""
    assert all(i.isalnum() and len(i) == 9 for i in reader.ids)
    assert len(set(reader.ids)) == len(calls)


def test_a_call_that_is_cut_has_begun():
    (part,) = CallReader().push('<tool_call>\n{"name": "f", "arguments": {"a": "b')
    assert (part.call.name, part.text) == ("f", '{"a": "b')
