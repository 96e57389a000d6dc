"""Calls that a model writes as JSON although its template has another form; what is no call stays text."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.events import Kind, Piece
from localspec.structure.json_calls import JsonCallReader
from localspec.structure.read_calls import CallReader
from localspec.structure.tool_call_format import HERMES
from tests.prompt.carried import TEMPLATES, ready, tiered
from tests.structure.characters import TEMPLATE, scripted_session
from tests.structure.test_tools import FUNCTIONS, LLAMA, OSLO, TOOLS

ARGUMENTS = {"city": "Oslo", "days": 2}
NOW = '{"name": "now", "arguments": {}}'
CALLS = {
    "bare": (OSLO, ""),
    "indented": (json.dumps(json.loads(OSLO), indent=2), ""),
    "in a fence": (f"```json\n{OSLO}\n```", ""),
    "in a fence without a language": (f"\n```\n{OSLO}```\n", ""),
    "in a fence without an end": (f"```json\n{OSLO}\n", ""),
    "in a tag": (f"<tools>\n{OSLO}\n</tools>", ""),
    "in a tag in a fence": (f"```xml\n<function_call>{OSLO}</function_call>\n```", ""),
    "in Phi's tag": (f"<|tool_call|>[{OSLO}]<|/tool_call|>", ""),
    "with parameters": (OSLO.replace("arguments", "parameters"), ""),
    "with a type and an id": (f'{{"type": "function", {OSLO[1:-1]}, "id": "1"}}', ""),
    "with the name last": ('{"arguments": {"days": 2, "city": "Oslo"}, "name": "get_weather"}', ""),
    "with doubled braces": (f"{{{OSLO}}}\nDone.", "\nDone."),
    "with doubled braces at the beginning only": ("{" + OSLO, ""),
    "with doubled braces in a tag": (f"<tool_call>\n{{{OSLO} }}\n</tool_call>", ""),
    "a list": (f"[{OSLO}]", ""),
    "before text": (f"```json\n{OSLO}\n```\n\nLet me see.", "\n\nLet me see."),
    "before another object": (f"{OSLO}\n{NOW}", f"\n{NOW}"),
    "with a fence inside": (OSLO.replace("Oslo", "```[<json>{") + "\n``` is a fence.", "\n``` is a fence."),
}
NO_CALLS = (
    "It is cold.",
    "",
    " \n",
    '{"city": "Oslo", "days": 2}',
    '{"name": "later", "arguments": {}}',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "arguments": 3}',
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    OSLO.replace("2", "9"),
    OSLO.replace('"days"', '"day"'),
    OSLO[:-1],
    OSLO.replace("}}", '}, "name": "now"}'),
    '{"name": "now", "arguments": {"zone": "UTC"}}',
    f"[{OSLO}, 3]",
    f"[{OSLO}",
    "[]",
    f"A call is written so:\n{OSLO}",
    f"```python\ncall = {OSLO}\n```",
    f"<thinking>{OSLO}</thinking>",
    f"> {OSLO}",
    f'{{"calls": [{OSLO}]}}',
    '{"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}',
    "```json\n" + json.dumps(TOOLS, indent=2) + "\n```",
    '{"name": "now", "arguments": ' + "[" * 5000 + "]" * 5000 + "}",
)  # fmt: skip


def split(text, cuts=(), form=HERMES, *, several=True):
    """The calls and the text that a reader gives, and how much was read when it first gave something."""
    reader, found, first = JsonCallReader(form, FUNCTIONS, several=several), [], None
    edges = [0, *sorted(cuts), len(text)]
    for begin, end in itertools.pairwise(edges):
        found += reader.push(text[begin:end])
        first = end if found and first is None else first
    found += reader.flush()
    calls = [(part.ended.name, part.ended.arguments) for part in found if part.ended]
    assert all(json.loads(part.text) == part.ended.arguments for part in found if part.call and part.ended)
    return calls, "".join(part.text for part in found if part.kind is Kind.ANSWER), first


@pytest.mark.parametrize("how", CALLS)
@settings(max_examples=15)  # and one character at a time, each time
@given(st.data())
def test_calls_in_other_forms_are_read_however_the_text_arrives(how, data):
    text, behind = CALLS[how]
    cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=5))
    for pieces in (cuts, range(len(text))):
        calls, answer, _ = split(text, pieces)
        city = "```[<json>{" if "fence inside" in how else "Oslo"
        assert (calls, answer) == ([("get_weather", {**ARGUMENTS, "city": city})], behind)


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_no_template_takes_another_text_for_a_call(name):
    form = ready(name).tool_call_format
    for text in NO_CALLS:
        plain = CallReader(form, FUNCTIONS)
        alone = [*plain.push(text), *plain.flush()]
        for pieces in ((), range(len(text))) if len(text) < 2000 else [()]:
            assert split(text, pieces, form)[:2] == (
                [(part.ended.name, part.ended.arguments) for part in alone if part.ended],
                "".join(part.text for part in alone if part.kind is Kind.ANSWER),
            )


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_calls_in_the_models_own_form_come_as_before(name):
    form = ready(name).tool_call_format
    text = form.written([("get_weather", ARGUMENTS), ("now", {})][: 1 if form.between is None else 2])
    plain = CallReader(form, FUNCTIONS)
    wrapped = JsonCallReader(form, FUNCTIONS, several=True)
    for character in text:
        shown, expected = wrapped.push(character), plain.push(character)
        assert [(part.text, part.kind) for part in shown] == [(part.text, part.kind) for part in expected]
    assert [part.ended for part in wrapped.flush()] == [part.ended for part in plain.flush()]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("It is", 0),
        ("```python\nx", 10),
        ('{"answer": 1}', 3),
        ('{"name": "gone", "arguments": {}}', 11),
        ('```json\n{"title": 1}', 11),
        ("<table>", 2),
        (OSLO + "!", len(OSLO) - 1),
    ],
)
def test_a_text_is_held_only_while_it_may_be_a_call(text, held):
    assert split(text, range(len(text)), LLAMA)[2] == held + 1


def test_a_reply_of_one_call_at_most_reads_no_list_of_two():
    text = f"[{OSLO}, {NOW}]"
    assert [name for name, _ in split(text)[0]] == ["get_weather", "now"]
    assert split(text, several=False)[:2] == ([], text)
    behind = f" and\n<tool_call>\n{NOW}\n</tool_call>"
    assert [name for name, _ in split(OSLO + behind)[0]] == ["get_weather", "now"]
    assert split(OSLO + behind, several=False)[:2] == ([("get_weather", ARGUMENTS)], behind)


FENCED = f"```json\n{OSLO}\n```"


def test_a_session_streams_the_call_and_keeps_it():
    session = scripted_session(FENCED)
    events = list(session.stream("weather?", tools=TOOLS))
    reply = events[-1].reply
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("get_weather", ARGUMENTS)]
    pieces = [event for event in events if isinstance(event, Piece)]
    assert [(piece.call.name, json.loads(piece.text)) for piece in pieces] == [("get_weather", ARGUMENTS)]
    assert (reply.text, reply.cut_calls, session.messages[-1].tool_calls) == ("", (), reply.tool_calls)


@pytest.mark.parametrize(
    "options",
    [
        {"json_calls": False},
        {"tool_choice": "none"},
        {"max_tokens": len(FENCED) - 6},
    ],
    ids=str,
)
def test_what_is_no_call_by_a_setting_or_a_cut_is_text(options):
    reply = scripted_session(FENCED).run("weather?", tools=TOOLS, **options)
    assert (reply.text, reply.tool_calls) == (FENCED[: options.get("max_tokens")], ())


def test_an_answer_with_a_schema_is_no_call():
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}}}
    reply = scripted_session(NOW).run("time?", tools=TOOLS, json_schema=schema)
    assert (reply.text, reply.tool_calls) == (NOW, ())


RESUMED = TEMPLATE.replace("{{ m.content }}|", "{{ '' if m.role == 'user' }}|{{ m.content }}")


@pytest.mark.parametrize("written", [f"<tool_call>\n{OSLO}\n</tool_call>", FENCED, OSLO], ids=str)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.9])
def test_a_call_that_begins_in_the_continued_message_is_a_call(written, share):
    size = int(len(written) * share)
    question = [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": written[:size]}]
    session = scripted_session(written, RESUMED)
    events = list(session.stream(question, tools=TOOLS))
    reply = events[-1].reply
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("get_weather", ARGUMENTS)]
    pieces = [event for event in events if isinstance(event, Piece)]
    assert {piece.kind for piece in pieces} == {Kind.TOOL_CALL}
    assert json.loads("".join(piece.text for piece in pieces)) == ARGUMENTS
    assert sum(piece.call is not None for piece in pieces) == 1


@pytest.mark.parametrize(
    "text", ['{"name": "later", "arguments": {}}', "<tool_call> is a tag.", f"{NOW} and so on"]
)
@pytest.mark.parametrize("size", [1, 5, 12])
def test_a_continued_message_that_is_no_call_comes_without_its_beginning(text, size):
    question = [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": text[:size]}]
    reply = scripted_session(text, RESUMED).run(question, tools=TOOLS[:1])
    assert (reply.text, reply.tool_calls) == (text[size:], ())


def test_a_schema_that_no_grammar_expresses_allows_any_object():
    functions = {"f": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?!x)"}}}}
    reader = JsonCallReader(HERMES, functions)
    (part,) = reader.push('{"name": "f", "arguments": {"a": 5}}')
    assert part.ended.arguments == {"a": 5}
