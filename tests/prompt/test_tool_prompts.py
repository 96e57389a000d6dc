"""Prompts with tools are those of plain Jinja, as Hugging Face sets it up, for every template that tells of tools."""

import json
import re

import pytest
from jinja2 import Environment

from localspec.chat.reply import GENERIC_CALLS
from localspec.errors import BadTemplate
from localspec.events import Notice
from localspec.prompt.messages import Message, as_messages
from localspec.prompt.template import ChatTemplate
from localspec.prompt.tokens import encode
from localspec.prompt.tools import read_tools
from tests.prompt.carried import NO_FORM, TEMPLATES, WITHOUT_TOOLS, ready, tiered
from tests.prompt.character_vocabulary import CharacterVocabulary
from tests.prompt.conversations import (
    CONVERSATIONS,
    LEFT_OUT,
    TOOLS,
    reference,
    with_text_arguments,
    with_thinking_part,
)
from tests.prompt.ordinary import MENDED
from tests.structure.characters import scripted_session

MARKS = re.compile(r"<[|｜][^<>{}'\" ]{1,40}[|｜]>|</?[a-z_:]+>|\[/?[A-Z_]+\]|<\|?[^<>{}'\" ]{1,20}\|?>")

TELLING = tiered(TEMPLATES.keys() - WITHOUT_TOOLS)
ONE_CALL = {"two calls"}  # these templates refuse a message with two calls; here each has its own


def functions_of(tools):
    functions = [tool["function"] for tool in tools or ()]
    return json.dumps(functions, ensure_ascii=False, indent=4 if tools else None)


def without_no_tools(tools):
    return {} if tools else {"tools": LEFT_OUT}


# Where Hugging Face's setting fails or loses something: what llama.cpp's server or the makers give the template.
EXPLAINED = {
    "Kimi-K2-Instruct": lambda tools: {"base": Environment},  # appends to a list
    "Kimi-K2-Thinking": lambda tools: {"base": Environment},
    "meetkai-functionary-medium-v3.2": lambda tools: {"change": with_text_arguments},  # joins them with texts
    "mistralai-Ministral-3-14B-Reasoning-2512": lambda tools: {"change": with_thinking_part},
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": without_no_tools,  # goes through tools that are none
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": without_no_tools,
    "fireworks-ai-llama-3-firefunction-v2": lambda tools: {"functions": functions_of(tools)},  # knows no `tools`
}  # fmt: skip


def ours(name, messages, tools):
    variables = ready(name).tool_variables(read_tools(tools)) if tools else {}
    return ready(name).render(as_messages(messages), arguments=variables)


def different(name, more=lambda tools: {}):
    """The conversations whose prompts are not those of the reference."""
    found = set()
    for title, (messages, tools) in CONVERSATIONS.items():
        now = ready(name)._sandbox.now
        dates = {"date_string": f"{now:%d %b %Y}", "datetime": f"{now:%b %d %Y}"}  # as in llama.cpp's server
        given = {"tools": tools, "now": now, **dates, **ready(name)._always, **more(tools)}
        try:
            wanted = reference(TEMPLATES[name], messages, **given)
        except Exception:  # noqa: BLE001  whatever a template raises
            wanted = None
        found |= set() if ours(name, messages, tools) == wanted else {title}
    return found


@pytest.mark.parametrize("name", TELLING)
def test_the_prompts_are_those_of_hugging_faces_setting(name):
    # Calls that a template does not render are written by the PromptBuilder.
    mended = {*MENDED.get(name, ())} & CONVERSATIONS.keys() if ready(name).repeats_calls else set()
    expected = mended | (ONE_CALL if name.startswith("meta-llama") else set())
    assert different(name, EXPLAINED.get(name, lambda tools: {})) == expected


def test_a_tool_that_a_template_cannot_tell_as_it_is_is_spelled_out():
    """Seed's template joins a type with texts."""
    given = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}}
    (tool,) = read_tools([given])
    for name in ("ByteDance-Seed-OSS", "GigaChat3-10B-A1.8B", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"):
        assert ready(name).tool_variables([tool])


def test_a_template_changes_its_own_lists_only():
    own = "{% set found = [] %}{% if found.append(1) %}{% endif %}{{ found }}"
    assert ChatTemplate(own, bos_text="", eos_text="").render([Message("user", "a")]) == "[1]"
    for theirs in ("messages", "tools", "tools[0].function.parameters.required"):
        change = ChatTemplate("{{ " + theirs + ".append(1) }}", bos_text="", eos_text="")
        arguments = ready("Qwen3.5-4B").tool_variables(read_tools(TOOLS))
        with pytest.raises(BadTemplate, match="unsafe"):
            change.render([Message("user", "a")], arguments=arguments)


@pytest.mark.parametrize("name", TELLING)
def test_a_prompt_with_guarded_contents_is_the_same(name):
    """Its contents have no control text, so nothing of it may change."""
    vocabulary = CharacterVocabulary(["<s>", "</s>", *sorted(set(MARKS.findall(TEMPLATES[name])))])
    for messages, tools in CONVERSATIONS.values():
        variables = ready(name).tool_variables(read_tools(tools)) if tools else {}
        found = encode(vocabulary, ready(name), as_messages(messages), arguments=variables)
        assert found.text == ours(name, messages, tools)


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_the_templates_without_tools_are_those(name):
    assert bool(ready(name).tool_variables(read_tools(TOOLS))) == (name not in WITHOUT_TOOLS)


def test_tools_that_a_template_cannot_tell_get_a_notice_once():
    session = scripted_session("Sure.", TEMPLATES["google-gemma-2-2b-it"])
    notices = [[e.text for e in session.stream("a|", tools=TOOLS) if isinstance(e, Notice)] for _ in range(2)]
    assert [texts.count(GENERIC_CALLS) for texts in notices] == [1, 0]
    session = scripted_session("Sure.", TEMPLATES["Qwen-Qwen2.5-7B-Instruct"])
    events = session.stream("a|", tools=TOOLS, max_tokens=1)
    assert GENERIC_CALLS not in [event.text for event in events if isinstance(event, Notice)]


@pytest.mark.parametrize("name", tiered(TEMPLATES.keys() - NO_FORM))
def test_a_template_that_writes_calls_keeps_its_form_whether_it_tells_of_tools_or_not(name):
    template = ready(name)
    tool = {"name": "look_up", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
    session = scripted_session("x", TEMPLATES[name])
    call = {"id": "abcdefghi", "function": {"name": "look_up", "arguments": {"q": "a"}}}
    asked = [{"role": "user", "content": "Go."}]
    reported = session.prompt_of(asked, tools=[tool]).text
    assert "look_up" in reported
    if template.repeats_calls and not template.tool_variables(read_tools([tool])):
        assert template.tool_call_format.written([("NAME", {"PARAMETER": "VALUE"})]) in reported
        answered = [*asked, {"role": "assistant", "tool_calls": [call]}]
        answered.append({"role": "tool", "tool_call_id": "abcdefghi", "content": "noon"})
        later = session.prompt_of(answered, tools=[tool]).text
        assert template.tool_call_format.open + "look_up" + template.tool_call_format.name_end in later
        assert "<tool_response>" not in later
