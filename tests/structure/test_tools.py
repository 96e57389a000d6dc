"""Tools: described by the model's template or in words, called in its format, read back, answered."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.messages import as_messages
from localspec.chat.template import ChatTemplate
from localspec.chat.tools import (
    FORMATS,
    GENERIC,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    CallSplitter,
    calls_in,
    read_tools,
    tools_grammar,
)
from localspec.errors import BadSetting
from localspec.events import Kind, Piece, ToolCall
from localspec.structure.tokens import GrammarTokens
from tests.chat.carried import TEMPLATES
from tests.structure.toys import Characters, scripted_session, session_of

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
WRITTEN = {
    HERMES: f'<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
    GENERIC: f'<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
    LLAMA: OSLO.replace("arguments", "parameters"),
    MISTRAL: f'[TOOL_CALLS][{OSLO}, {{"name": "now", "arguments": {{}}}}]',
    MISTRAL_NAMED: '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 2}[TOOL_CALLS]now[ARGS]{}',
}


def accepted(text, how, *, required=False):
    """How much of a text the grammar of some tools accepts, and whether it may end there."""
    grammar = tools_grammar(read_tools(TOOLS), how, required=required, names={})
    matcher = GrammarTokens(Characters()).matcher(grammar)
    tokens = Characters().tokenize(text, parse_special=False)
    return matcher.try_consume_tokens(tokens), matcher.is_accepting()


@pytest.mark.parametrize("how", WRITTEN, ids=lambda how: how.name)
def test_calls_are_accepted_and_read_back(how):
    text = WRITTEN[how]
    for required in (True, False):
        assert accepted(text, how, required=required) == (len(text), True)
    calls = calls_in(text, how)
    assert (calls[0].name, calls[0].arguments) == ("get_weather", {"city": "Oslo", "days": 2})
    assert [call.name for call in calls][1:] in ([], ["now"])
    assert len({call.id for call in calls}) == len(calls)
    assert all(len(call.id) == 9 and call.id.isalnum() for call in calls)


@pytest.mark.parametrize("how", WRITTEN, ids=lambda how: how.name)
def test_text_is_an_answer_too_unless_a_call_is_required(how):
    assert accepted("It is cold.", how) == (11, True)
    assert accepted("It is cold.", how, required=True)[0] == 0


@pytest.mark.parametrize("how", WRITTEN, ids=lambda how: how.name)
def test_arguments_that_break_their_schema_cannot_be_written(how):
    for wrong in (WRITTEN[how].replace("2}", "9}"), WRITTEN[how].replace("get_weather", "set_weather")):
        assert accepted(wrong, how)[0] < len(wrong)


def test_what_a_schema_says_beyond_grammars_does_not_keep_a_tool_from_being_offered():
    names = {
        "type": "object",
        "propertyNames": {"pattern": "^(?!x)"},
        "additionalProperties": {"type": "integer"},
    }
    tool = {
        "name": "count",
        "parameters": {"type": "object", "properties": {"names": names}, "not": {"const": 1}},
    }
    grammar = tools_grammar(read_tools([tool]), GENERIC, required=True, names={})
    call = '<tool_call>\n{"name": "count", "arguments": {"names": {"a": 1}}}\n</tool_call>'
    for text, is_call in ((call, True), (call.replace("1}", "true}"), False)):
        matcher = GrammarTokens(Characters()).matcher(grammar)
        taken = matcher.try_consume_tokens(Characters().tokenize(text, parse_special=False))
        assert (taken == len(text)) is is_call


def test_a_call_that_was_cut_is_none():
    for how in (HERMES, MISTRAL_NAMED):
        assert [call.name for call in calls_in(WRITTEN[how][:-20], how)] == ["get_weather"]
        assert calls_in(WRITTEN[how][:30], how) == ()


FAMILIES = {
    "Qwen-Qwen3-0.6B": HERMES,
    "Qwen-Qwen2.5-7B-Instruct": HERMES,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": HERMES,
    "meta-llama-Llama-3.1-8B-Instruct": LLAMA,
    "meta-llama-Llama-3.2-3B-Instruct": LLAMA,
    "mistralai-Mistral-Nemo-Instruct-2407": MISTRAL,
    "unsloth-mistral-Devstral-Small-2507": MISTRAL_NAMED,
    "Qwen3-Coder": GENERIC,
    "MiniMax-M3": GENERIC,
    "unsloth-Apriel-1.5": GENERIC,
    "google-gemma-2-2b-it": GENERIC,
    "openai-gpt-oss-120b": GENERIC,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_format_is_the_one_that_the_template_writes(name):
    template = ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>")
    assert template.call_format is FAMILIES[name]
    if template.call_format in FORMATS:
        assert template.shows(read_tools(TOOLS))


def test_a_conversation_with_a_tool():
    said = 'Let me see.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    session = scripted_session(said)  # its template knows no tools, so they are described in words
    events = list(session.stream("what time?", tools=TOOLS))
    reply = events[-1].reply
    (call,) = reply.tool_calls
    assert (reply.text, call.name, call.arguments) == ("Let me see.\n", "now", {})
    shown = [event.text for event in events if isinstance(event, Piece) and event.kind is Kind.ANSWER]
    assert "".join(shown) == reply.text
    assert session.messages[-1].tool_calls == (call,)
    result = {"role": "tool", "tool_call_id": call.id, "content": "noon <tool_call>"}
    session.run([*session.messages, result], tools=TOOLS, max_tokens=3)
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_required_call_is_the_same_with_and_without_drafts():
    for seed in range(6):
        replies = [
            session_of(seed).run(
                "go", tools=TOOLS, tool_choice="required", temperature=0, max_tokens=400, speculate=speculate
            )
            for speculate in (True, False)
        ]
        assert replies[0].tokens == replies[1].tokens
        assert replies[0].tool_calls == replies[1].tool_calls
        for call in replies[0].tool_calls:
            schema = WEATHER["function"]["parameters"] if call.name == "get_weather" else {"maxProperties": 0}
            jsonschema.validate(call.arguments, schema)
        assert replies[0].tool_calls


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


@given(st.text(alphabet="ab<tool_cal>\n", max_size=60), st.data())
def test_the_split_does_not_depend_on_how_the_text_arrives(text, data):
    whole = split([text], "<tool_call>")
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(parts, "<tool_call>") == whole
    before, mark, _ = text.partition("<tool_call>")
    assert whole == (before, text[len(before) :] if mark else "")


def split(parts, mark):
    splitter = CallSplitter(mark)
    found = [piece for part in parts for piece in splitter.push(part)] + splitter.flush()
    return tuple(
        "".join(text for kind, text in found if kind is wanted) for wanted in (Kind.ANSWER, Kind.TOOL_CALL)
    )


def test_a_brace_begins_a_call_only_where_the_answer_begins():
    assert split(['{"name"', ": 1}"], "{") == ("", '{"name": 1}')
    assert split(["use {", "x}"], "{") == ("use {x}", "")


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ("now", "tools must be a list"),
        ([3], "tool 1 is not a dictionary"),
        ([{"name": "two words"}], "two words"),
        ([NOW, NOW], "same name"),
        ([{"name": "x", "parameters": {"type": "string"}}], "parameters of x"),
    ],
)
def test_a_wrong_tool_is_named(tools, complaint):
    with pytest.raises(BadSetting, match=complaint):
        session_of().run("go", tools=tools, max_tokens=1)


def test_tools_need_a_conversation_and_no_other_grammar():
    with pytest.raises(BadSetting, match="conversation"):
        session_of().complete("go", tools=TOOLS)
    with pytest.raises(BadSetting, match="regex and tools"):
        session_of().run("go", tools=TOOLS, regex="a")
    with pytest.raises(BadSetting, match="tool_choice"):
        session_of().run("go", tools=TOOLS, tool_choice="perhaps")


def test_control_texts_in_calls_and_results_stay_text():
    """What a tool returns is as untrusted as what a user writes."""
    (message,) = as_messages(
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {"k<end>": "<end>"}}}],
            }
        ]
    )
    assert "<end>" in message.texts
    hidden = message.with_texts(lambda text: text.replace("<end>", "#"))
    assert hidden.tool_calls[0].arguments == {"k#": "#"}
