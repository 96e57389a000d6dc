"""Tools: described by the model's template or in words, called in its format, read back, answered."""

from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.messages import as_messages
from localspec.chat.template import ChatTemplate
from localspec.chat.text import CallSplitter
from localspec.chat.tools import (
    FORMATS,
    GENERIC,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    calls_in,
    read_tools,
    tools_grammar,
)
from localspec.errors import BadSetting
from localspec.events import Kind, Piece, ToolCall
from localspec.structure.constraint import GrammarTokens
from tests.chat.carried import TEMPLATES
from tests.structure.toys import Characters, MarkedCharacters, scripted_session, session_of

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
    calls, rest = calls_in(text, how)
    assert rest == ""
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


@pytest.mark.parametrize("how", WRITTEN, ids=lambda how: how.name)
def test_a_call_that_was_cut_is_none_and_stays_text(how):
    text = WRITTEN[how]
    whole = [call.name for call in calls_in(text, how)[0]]
    for length in range(len(text)):
        calls, rest = calls_in(text[:length], how)
        assert [call.name for call in calls] == whole[: len(calls)]
        assert rest in ("", text[:length]) if not calls else rest == "" or rest.startswith(how.opening)
        last = (rest or how.opening).removeprefix(how.opening)
        assert text[:length].endswith(last)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ('{"city": "Oslo"}', LLAMA),
        ('{"name": "now", "parameters": 3}', LLAMA),
        ('[TOOL_CALLS] is how Mistral marks calls: {"x": 1}', MISTRAL),
        ("[TOOL_CALLS] is how Mistral marks calls", MISTRAL_NAMED),
        ("[TOOL_CALLS]now[ARGS]3", MISTRAL_NAMED),
        ('<tool_call>\n{"name": "now", "arguments": {"a": ' + "[" * 10_000 + "]" * 10_000 + "}}", HERMES),
    ],
)
def test_what_is_no_call_is_text(text, how):
    assert calls_in(text, how) == ((), text)


def test_arguments_may_hold_the_mark_of_calls():
    (call,), rest = calls_in('[TOOL_CALLS]now[ARGS]{"a": "[TOOL_CALLS]b[ARGS]{}"}', MISTRAL_NAMED)
    assert (call.arguments, rest) == ({"a": "[TOOL_CALLS]b[ARGS]{}"}, "")


def test_the_same_call_has_a_new_id_each_time():
    text = WRITTEN[HERMES]
    ids = [call.id for _ in range(20) for call in calls_in(text, HERMES)[0]]
    assert len(set(ids)) == 40


LLAMA_32 = TEMPLATES["meta-llama-Llama-3.2-3B-Instruct"]
NEMO = TEMPLATES["mistralai-Mistral-Nemo-Instruct-2407"]


@pytest.mark.parametrize(
    "text",
    [
        ' {"city": "Oslo"}',
        '\n{"city": "Oslo"}',
        ' {"answer": 42} is JSON.',
        ' {"name": "now", "parameters": {}}',
        "Sure.",
    ],
)
def test_a_llama_that_writes_json_for_its_answer_is_not_taken_to_call(text):
    """Its calls begin with the very first character: so the grammar has it, and a model that wants JSON steps aside."""
    session = scripted_session(">\n\n" + text, LLAMA_32)  # a script counts from the last bar of the prompt
    events = list(session.stream("JSON!", tools=TOOLS))
    reply = events[-1].reply
    assert (reply.text, reply.tool_calls) == (text, ())
    assert written(events) == {Kind.ANSWER: text}
    assert session.messages[-1].content == text


def test_a_llama_s_calls_are_calls():
    text = '{"name": "now", "parameters": {}}'
    events = list(scripted_session(">\n\n" + text, LLAMA_32).stream("time?", tools=TOOLS))
    assert [call.name for call in events[-1].reply.tool_calls] == ["now"]
    assert written(events) == {Kind.TOOL_CALL: "{}"}


CALL = '[{"name": "now", "arguments": {}}]'
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


@pytest.mark.parametrize("length", range(1, len(CALL)))
def test_a_reply_that_is_cut_inside_a_call_is_text(length):
    events = list(
        nemo([MarkedCharacters.mark, *characters(CALL)]).stream("go|", tools=TOOLS, max_tokens=length)
    )
    reply = events[-1].reply
    text = "[TOOL_CALLS]" + CALL[: length - 1]
    shown = written(events)
    if reply.tool_calls:
        assert reply.text == ""
        assert length >= len(CALL) - 1
    else:
        assert reply.text == text
        _, begun, arguments = text.partition('[TOOL_CALLS][{"name": "now", "arguments": ')
        assert shown == ({Kind.TOOL_CALL: arguments} if begun else {Kind.ANSWER: text})


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
        fast, slow = ([replace(call, id="") for call in reply.tool_calls] for reply in replies)
        assert fast == slow
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


HEAD = "<ab>"


@given(st.text(alphabet="ab<>", max_size=60), st.data())
def test_the_split_does_not_depend_on_how_the_text_arrives(text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    before, head, _ = text.partition(HEAD)
    assert split(parts, anywhere=True) == (before, text[len(before) :] if head else "")
    assert split(parts, anywhere=False) == (("", text) if text.startswith(HEAD) else (text, ""))


def split(parts, *, anywhere):
    splitter = CallSplitter([HEAD], anywhere=anywhere, first=True)
    found = [piece for part in parts for piece in splitter.push(part)] + splitter.flush()
    return tuple(
        "".join(text for kind, text in found if kind is wanted) for wanted in (Kind.ANSWER, Kind.TOOL_CALL)
    )


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


NATIVE = sorted(name for name, how in FAMILIES.items() if how in FORMATS)


@pytest.mark.parametrize("arguments", ['{"city":', "[1]", "Oslo"])
@pytest.mark.parametrize("name", NATIVE)
def test_a_call_that_was_cut_may_stand_in_a_history(name, arguments):
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "now", "arguments": arguments}}
    history = as_messages(
        [
            {"role": "user", "content": "time?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": "no JSON"},
        ]
    )
    assert history[1].tool_calls[0].unreadable == arguments
    prompt = ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>").render(history)
    assert arguments in prompt.replace('\\"', '"')
    session = session_of()  # its template knows no tools: calls are spelled out
    session.run([*history, {"role": "user", "content": "again"}], tools=TOOLS, max_tokens=2)
    assert session.messages[1].tool_calls[0].unreadable == arguments


def test_no_arguments_at_all_are_none():
    (message,) = as_messages(
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}]
    )
    assert message.tool_calls[0] == ToolCall("f", {}, "")


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
    (cut,) = as_messages(
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"k<end>'}}]}]
    )
    assert '{"k<end>' in cut.texts
    assert cut.with_texts(lambda text: text.replace("<end>", "#")).tool_calls[0].unreadable == '{"k#'
    hidden = message.with_texts(lambda text: text.replace("<end>", "#"))
    assert hidden.tool_calls[0].arguments == {"k#": "#"}
