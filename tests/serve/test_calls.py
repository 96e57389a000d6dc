"""Tool calls told piece by piece are those that are read from the whole text."""

import json

import pytest

from localspec.chat.tools import GENERIC, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, calls_in
from localspec.serve.openai import CallReader

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
    steps = [step for at in range(0, len(text), size) for step in reader.push(text[at : at + size])]
    ended = [step.call for step in steps if step.what == "ended"]
    found = [(call.name, json.loads(call.arguments)) for call in ended]
    calls, rest = calls_in(text, how)
    assert found == [(call.name, call.arguments) for call in calls]
    assert rest == ""
    assert len(found) == sum(step.what == "began" for step in steps)
    grown = "".join(step.text for step in steps if step.what == "grew")
    assert grown == "".join(call.arguments for call in ended)
    assert all(call.id.isalnum() and len(call.id) == 9 for call in ended)


def test_a_call_that_is_cut_has_begun_and_not_ended():
    steps = list(CallReader().push('<tool_call>\n{"name": "f", "arguments": {"a": "b'))
    assert [step.what for step in steps] == ["began", "grew"]
    assert steps[0].call.arguments == '{"a": "b'
