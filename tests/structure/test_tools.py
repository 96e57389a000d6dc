"""Tools: described by the model's template or in words, called in its format, read back, answered."""

from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import BadSetting
from localspec.events import Kind, Notice, Piece, ToolCall
from localspec.prompt.messages import as_messages
from localspec.prompt.tools import read_tools
from localspec.structure.call_grammar import calls_grammar
from localspec.structure.constraint import GrammarTokens
from localspec.structure.grammar import json_grammar
from localspec.structure.read_calls import CallReader, calls_in
from localspec.structure.tool_call_format import GENERIC, HERMES, as_json
from tests.prompt.carried import TEMPLATES, ready
from tests.structure.characters import Characters, MarkedCharacters, scripted_session, session_of

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of the coming days.",
        "parameters": {
            "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"$ref": "#/$defs/days"}},
            "required": ["city", "days"],
        },
    },
}
NOW = {"name": "now"}
TOOLS = [WEATHER, NOW]
OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}'
FUNCTIONS = {tool.name: tool.schema for tool in read_tools(TOOLS)}


def format_of(name):
    return ready(name).tool_call_format


LLAMA = format_of("meta-llama-Llama-3.2-3B-Instruct")
MISTRAL = format_of("mistralai-Mistral-Nemo-Instruct-2407")
MISTRAL_NAMED = format_of("unsloth-mistral-Devstral-Small-2507")
CODER = format_of("Qwen3-Coder")
FORMS = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL, "mistral 3": MISTRAL_NAMED, "coder": CODER}
CALLS = [("get_weather", {"city": "Oslo", "days": 2}), ("now", {})]
WRITTEN = {
    "hermes": f'<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
    "llama": OSLO.replace("arguments", "parameters"),
    "mistral": f'[TOOL_CALLS][{OSLO[:-1]}, "id": "abcdefghi"}}, '
    '{"name": "now", "arguments": {}, "id": "abcdefghi"}]',
    "mistral 3": '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 2}[TOOL_CALLS]now[ARGS]{}',
    "coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
}


def accepted(text, how, choice="auto", **more):
    """How much of a text the grammar of some tools accepts, and whether it may end there."""
    grammar = calls_grammar(FORMS[how], FUNCTIONS, choice=choice, names={}, **more)
    matcher = GrammarTokens(Characters()).matcher(grammar)
    tokens = Characters().tokenize(text, parse_special=False)
    return matcher.try_consume_tokens(tokens), matcher.is_accepting()


@pytest.mark.parametrize("how", WRITTEN)
def test_calls_are_accepted_and_read_back(how):
    text = WRITTEN[how]
    assert FORMS[how].written(CALLS if FORMS[how].between is not None else CALLS[:1]) == text
    for choice in ("required", "auto"):
        assert accepted(text, how, choice) == (len(text), True)
    calls, rest = calls_in(text, FORMS[how], FUNCTIONS)
    assert rest == ""
    assert (calls[0].name, calls[0].arguments) == ("get_weather", {"city": "Oslo", "days": 2})
    assert [call.name for call in calls][1:] in ([], ["now"])
    assert len({call.id for call in calls}) == len(calls)
    assert all(len(call.id) == 9 and call.id.isalnum() for call in calls)


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_line_end_behind_a_call_is_no_decision_for_another(choice):
    text = WRITTEN["hermes"] + "\n"
    assert accepted(text, "hermes", choice) == (len(text), True)
    assert calls_in(text, HERMES, FUNCTIONS)[1] == ""
    assert accepted(text + "\n", "hermes", choice)[0] == len(text)


@pytest.mark.parametrize("how", WRITTEN)
def test_text_may_precede_or_replace_calls_unless_the_choice_forbids_one_of_them(how):
    call, text = WRITTEN[how], f"I look.\n{WRITTEN[how]}"
    assert accepted("It is cold.", how) == accepted("It is cold.", how, "none") == (11, True)
    assert accepted("It is cold.", how, "required")[0] == 0
    assert accepted(call, how, "none") != (len(call), True)
    assert accepted(text, how) == (len(text), True)
    calls, rest = calls_in(text, FORMS[how], FUNCTIONS)
    assert (calls[0].name, rest) == ("get_weather", "I look.\n")


@pytest.mark.parametrize("how", WRITTEN)
def test_an_answer_with_a_schema_may_stand_in_place_of_calls(how):
    properties = {"cold": {"type": "boolean"}}
    shape = json_grammar({"type": "object", "properties": properties, "required": ["cold"]})
    for text in (WRITTEN[how], '{"cold":true}'):
        assert accepted(text, how, answer=shape) == (len(text), True)
    for text in ("It is cold.", '{"cold":1}'):
        assert accepted(text, how, answer=shape)[0] < len(text)
    assert accepted('{"cold":true}', how, "required", answer=shape)[1] is False


@pytest.mark.parametrize("how", WRITTEN)
def test_arguments_that_break_their_schema_cannot_be_written(how):
    days = WRITTEN[how].replace("2}", "9}").replace("\n2\n", "\n9\n")
    assert accepted(days, how)[0] < len(days)
    name = WRITTEN[how].replace("get_weather", "set_weather")
    assert accepted(name, how, "required")[0] < len(name)


def test_what_a_schema_says_beyond_grammars_does_not_keep_a_tool_from_being_offered():
    names = {"propertyNames": {"pattern": "^(?!x)"}, "additionalProperties": {"type": "integer"}}
    properties = {"names": {"type": "object", **names}}
    tool = {"name": "count", "parameters": {"type": "object", "properties": properties, "not": {"const": 1}}}
    grammar = calls_grammar(GENERIC, {"count": read_tools([tool])[0].schema}, choice="required", names={})
    call = '<tool_call>\n{"name": "count", "arguments": {"names": {"a": 1}}}\n</tool_call>'
    for text, is_call in ((call, True), (call.replace("1}", "true}"), False)):
        matcher = GrammarTokens(Characters()).matcher(grammar)
        taken = matcher.try_consume_tokens(Characters().tokenize(text, parse_special=False))
        assert (taken == len(text)) is is_call


def test_a_tool_is_shown_as_its_caller_wrote_it():
    (tool,) = read_tools([{"name": "now", "parameters": {"type": "object", "properties": {}}}])
    assert tool.definition["function"]["parameters"] == {"type": "object", "properties": {}}
    assert tool.schema["additionalProperties"] is False


@pytest.mark.parametrize("how", WRITTEN)
def test_a_call_that_was_cut_is_none(how):
    text = WRITTEN[how]
    whole = [call.name for call in calls_in(text, FORMS[how], FUNCTIONS)[0]]
    for length in range(len(text)):
        calls, rest = calls_in(text[:length], FORMS[how], FUNCTIONS)
        assert [call.name for call in calls] == whole[: len(calls)]
        assert text[:length].endswith(rest)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ('{"city": "Oslo"}', "llama"),
        ('{"name": "now", "parameters": 3}', "llama"),
        ('[TOOL_CALLS] is how Mistral marks calls: {"x": 1}', "mistral"),
        ("[TOOL_CALLS] is how Mistral marks calls", "mistral 3"),
        ("[TOOL_CALLS]now[ARGS]3", "mistral 3"),
        ('<tool_call>\n{"name": "later", "arguments": {}}\n</tool_call>', "hermes"),
        ("<tool_call> begins a call of Qwen's", "hermes"),
    ],
)
def test_what_is_no_call_is_text(text, how):
    assert calls_in(text, FORMS[how], FUNCTIONS) == ((), text)


def test_arguments_that_no_parser_reads_are_a_call_that_was_cut():
    text = '<tool_call>\n{"name": "now", "arguments": {"a": ' + "[" * 10_000 + "]" * 10_000 + "}}"
    reader = CallReader(HERMES, FUNCTIONS)
    parts = reader.push(text) + reader.flush(cut=True)
    (cut,) = [part.ended for part in parts if part.ended]
    assert (cut.arguments, cut.unreadable) == ({}, "".join(part.text for part in parts))


LLAMA_32 = TEMPLATES["meta-llama-Llama-3.2-3B-Instruct"]
NEMO = TEMPLATES["mistralai-Mistral-Nemo-Instruct-2407"]


@pytest.mark.parametrize(
    "text",
    [
        ' {"city": "Oslo"}',
        '\n{"city": "Oslo"}',
        ' {"answer": 42} is JSON.',
        ' {"name": "later", "parameters": {}}',
    ],
)
def test_a_llama_that_writes_json_for_its_answer_is_not_taken_to_call(text):
    """Only the name of a tool makes a call of it."""
    session = scripted_session(">\n\n" + text, LLAMA_32)  # a script counts from the last bar of the prompt
    events = list(session.stream("JSON!", tools=TOOLS))
    reply = events[-1].reply
    assert (reply.text, reply.tool_calls) == (text, ())
    assert written(events) == {Kind.ANSWER: text}
    assert session.messages[-1].content == text


CALL = '[{"name": "now", "arguments": {}, "id": "123456789"}]'
SPELLED = '[TOOL_CALLS] is how Mistral marks calls: {"x": 1}'


@pytest.mark.parametrize("text", [SPELLED, "[TOOL_CALLS]" + CALL, "So: [TOOL_CALLS]"])
def test_a_mark_that_is_spelled_in_ordinary_tokens_is_text(text):
    events = list(nemo(characters(text)).stream("calls?|", tools=TOOLS))
    assert (events[-1].reply.text, events[-1].reply.tool_calls) == (text, ())
    assert written(events) == {Kind.ANSWER: text}


def test_after_a_spelled_mark_the_token_still_begins_calls():
    marked = [*characters(SPELLED + " "), MarkedCharacters.mark, *characters(CALL)]
    events = list(nemo(marked).stream("calls?|", tools=TOOLS))
    assert [call.name for call in events[-1].reply.tool_calls] == ["now"]
    assert written(events) == {Kind.ANSWER: SPELLED + " ", Kind.TOOL_CALL: "{}"}


@pytest.mark.parametrize("length", [1, 2, 9, 19, *range(28, 36), 45, len(CALL) - 1])
def test_the_markup_of_a_call_that_is_cut_is_no_text(length):
    session = nemo([MarkedCharacters.mark, *characters(CALL)])
    events = list(session.stream("go|", tools=TOOLS, max_tokens=length))
    reply = events[-1].reply
    text = "[TOOL_CALLS]" + CALL[: length - 1]
    shown = written(events)
    _, _, arguments = text.partition('[TOOL_CALLS][{"name": "now", "arguments": ')
    assert reply.text == ""
    assert bool(reply.tool_calls) is arguments.startswith("{}")
    assert [call.unreadable for call in reply.cut_calls] == (["{"] if arguments == "{" else [])
    assert shown == ({Kind.TOOL_CALL: arguments[:2]} if arguments else {})


def characters(text):
    return Characters().tokenize(text, parse_special=False)


def nemo(tokens):
    """A session on Mistral Nemo's template, for questions that end with the bar that scripts count from."""
    return scripted_session([*characters("[/INST]"), *tokens], NEMO, vocabulary=MarkedCharacters())


def written(events):
    found = {}
    for event in events:
        if isinstance(event, Piece):
            found[event.kind] = found.get(event.kind, "") + event.text
    return found


def test_a_conversation_with_a_tool():
    remarks = 'Let me see.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    session = scripted_session(remarks)  # its template knows no tools, so they are described in words
    events = list(session.stream("what time?", tools=TOOLS))
    reply = events[-1].reply
    (call,) = reply.tool_calls
    assert (reply.text, call.name, call.arguments) == ("Let me see.\n", "now", {})
    shown = [event.text for event in events if isinstance(event, Piece) and event.kind is Kind.ANSWER]
    assert "".join(shown) == reply.text
    assert session.messages[-1].tool_calls == (call,)
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert sum("system message describes them" in text for text in notices) == 1
    result = {"role": "tool", "tool_call_id": call.id, "content": "noon <tool_call>"}
    session.run([*session.messages, result], tools=TOOLS, max_tokens=3)
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_required_call_is_the_same_with_and_without_drafts():
    for seed in range(6):
        options = {"tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": 400}
        replies = [
            session_of(seed).run("go", **options, speculate=speculates) for speculates in (True, False)
        ]
        assert replies[0].tokens == replies[1].tokens
        fast, slow = ([replace(call, id="") for call in reply.tool_calls] for reply in replies)
        assert fast == slow
        for call in replies[0].tool_calls:
            schema = WEATHER["function"]["parameters"] if call.name == "get_weather" else {"maxProperties": 0}
            jsonschema.validate(call.arguments, schema)
        assert replies[0].tool_calls


NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
OSLO_CALL = f"<tool_call>\n{OSLO}\n</tool_call>"


@pytest.mark.parametrize(
    ("written_calls", "kept"),
    [
        ([NOW_CALL] * 9, 1),
        ([OSLO_CALL, NOW_CALL, OSLO_CALL, NOW_CALL], 2),
        ([OSLO_CALL, OSLO_CALL.replace("Oslo", "Oslo 2"), NOW_CALL], 3),
    ],
)
def test_a_required_call_that_equals_an_earlier_one_ends_the_reply_and_is_dropped(written_calls, kept):
    session = scripted_session("\n".join(written_calls))
    events = list(session.stream("go", tools=TOOLS, tool_choice="required"))
    reply = events[-1].reply
    names = [call.name for call in reply.tool_calls]
    assert names == [("get_weather" if "weather" in call else "now") for call in written_calls[:kept]]
    assert [event.call.name for event in events if isinstance(event, Piece) and event.call] == names
    assert (reply.finish_reason, reply.cut_calls, reply.unmatched, reply.text) == ("stop", (), "", "")
    shown = "".join(e.text for e in events if isinstance(e, Piece) and e.kind is Kind.TOOL_CALL)
    assert shown == "".join(as_json(call.arguments) for call in reply.tool_calls)


def test_a_free_choice_may_repeat_a_call_unless_there_is_to_be_one_at_most():
    for options, count in (({}, 2), ({"parallel_tool_calls": False}, 1)):
        reply = scripted_session(f"{NOW_CALL}\n{NOW_CALL}").run("go", tools=TOOLS, **options)
        assert [call.name for call in reply.tool_calls] == ["now"] * count


def test_calls_in_a_history_are_our_own_or_openai_s():
    theirs = {"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"x": [1]}'}}
    ours = ToolCall("now", {"x": [1]}, "a")
    for call in (theirs, ours):
        session = session_of()
        history = [
            {"role": "user", "content": "time?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "name": "now", "content": "noon"},
        ]
        session.run(history, tools=TOOLS, max_tokens=2)
        assert session.messages[1].tool_calls == (ours,)


# Forms with white space in front of a head or behind a call.
SPACED = (
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "fireworks-ai-llama-3-firefunction-v2",
    "openai-gpt-oss-120b",
)
SPLIT = {how: (FORMS[how], text) for how, text in WRITTEN.items()}
SPLIT |= {name: (format_of(name), format_of(name).written(CALLS[:1])) for name in SPACED}


@given(st.text(alphabet='ab<>"{}/ \n', max_size=30), st.data())
@pytest.mark.parametrize("how", SPLIT)
def test_the_split_does_not_depend_on_how_the_text_arrives(how, between, data):
    form, call = SPLIT[how]
    made = [call + between, between + call, call[:40] + between + call[40:], call + between + call]
    text = data.draw(st.sampled_from(made))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(parts, form) == split(list(text), form) == split([text], form)


def split(parts, form):
    reader = CallReader(form, FUNCTIONS)
    found = [piece for part in parts for piece in reader.push(part)] + reader.flush()
    remarks = ["".join(part.text for part in found if part.kind is kind) for kind in Kind]
    assert {part.ended.id for part in found if part.ended} <= {part.call.id for part in found if part.call}
    return remarks, [(part.ended.name, part.ended.arguments) for part in found if part.ended]


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ("now", "tools must be a list"),
        ([3], "tool 1 is not a dictionary"),
        ([{"name": " "}], "the name of tool 1 cannot be"),
        ([{"name": "x", "parameters": {"type": "string"}, "strict": True}], "the tool x"),
    ],
)
def test_a_wrong_tool_is_named(tools, complaint):
    with pytest.raises(BadSetting, match=complaint):
        session_of().run("go", tools=tools, max_tokens=1)


def test_tools_need_a_conversation_and_no_other_grammar():
    with pytest.raises(BadSetting, match="raw prompt cannot have tools"):
        session_of().complete("go", tools=TOOLS)
    with pytest.raises(BadSetting, match="regex and tools"):
        session_of().run("go", tools=TOOLS, regex="a")
    with pytest.raises(BadSetting, match="tool_choice"):
        session_of().run("go", tools=TOOLS, tool_choice="perhaps")


@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        ({"not": {"required": ["b"]}}, '["not"]'),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '["if", "then"]'),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, '["uniqueItems"]'),
    ],
)
def test_what_a_grammar_cannot_follow_of_a_schema_is_named(rule, keys):
    schema = {"type": "object", "properties": {"a": {}}, **rule}
    events = list(scripted_session('{"a":[1]}').stream("go", json_schema=schema))
    assert events[-1].reply.text == '{"a":[1]}'
    remarks = [event.text for event in events if isinstance(event, Notice)]
    assert f"the JSON schema is followed only in part: a grammar cannot express {keys}" in remarks


def test_one_tool_can_be_named_and_all_can_be_kept_from_being_called():
    named = session_of().run("go", tools=TOOLS, tool_choice="now", temperature=0, max_tokens=400)
    assert [call.name for call in named.tool_calls] == ["now"]
    none = session_of().run("go", tools=TOOLS, tool_choice="none", max_tokens=40)
    assert none.tool_calls == ()


def test_control_texts_in_calls_and_results_stay_text():
    """What a tool returns is as untrusted as what a user writes."""
    functions = [{"name": "f", "arguments": arguments} for arguments in ({"k<end>": "<end>"}, '{"k<end>')]
    asked = [{"role": "assistant", "tool_calls": [{"function": function}]} for function in functions]
    message, cut = as_messages(asked)
    assert "<end>" in message.texts
    assert '{"k<end>' in cut.texts
    assert cut.with_texts(lambda text: text.replace("<end>", "#")).tool_calls[0].unreadable == '{"k#'
    hidden = message.with_texts(lambda text: text.replace("<end>", "#"))
    assert hidden.tool_calls[0].arguments == {"k#": "#"}
