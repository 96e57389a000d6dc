"""What clients of each interface send becomes messages."""

import math

import pytest

from localspec.errors import BadSetting
from localspec.events import ToolCall
from localspec.prompt.history import Taken, fitted
from localspec.prompt.messages import Message
from localspec.prompt.tools import read_tools
from localspec.serve import anthropic, responses
from localspec.serve.ollama import kept_seconds
from localspec.serve.openai import chat_prompt, prompt_of
from localspec.serve.options import Fields, tool_options


def test_blocks_become_messages():
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "fine"}
    found = anthropic.messages_of(
        [{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", "cache_control": {}}],
        [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "c"}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "d"}]},
        ],
    )
    assert [*prompt_of(found).messages] == [
        Message("system", "One.\nTwo."),
        Message("user", "a\nb"),
        Message("assistant", "c", "hm", (ToolCall("f", {"a": 1}, "t1"),)),
        Message("tool", "fine", tool_call_id="t1"),
        Message("user", "d"),
    ]


def test_items_of_every_kind_become_messages():
    found = responses.messages_of(
        "Be brief.",
        [
            {"role": "user", "content": "List the files."},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "a", "name": "ls", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "rm", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "x.py"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "gone"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Gone."}]},
            {"role": "user", "content": "Thanks."},
        ],
        [],
    )
    roles = ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [message["role"] for message in found] == roles
    calls = [(call["id"], call["function"]["name"]) for call in found[2]["tool_calls"]]
    assert calls == [("a", "ls"), ("b", "rm")]
    assert (found[3]["tool_call_id"], found[3]["content"]) == ("a", "x.py")
    assert (found[2]["reasoning_content"], found[4]["reasoning_content"]) == ("hm", "gone")
    prompt_of(found)


def test_results_find_their_calls_by_the_names_of_functions():
    call = {"function": {"name": "f", "arguments": {}}}
    other = {"function": {"name": "g", "arguments": {}}}
    asked = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call, other, call]},
        *({"role": "tool", "tool_name": name, "content": name} for name in ("g", "f", "f")),
        {"role": "tool", "tool_name": "h", "content": "?"},
    ]
    found = fitted(prompt_of(asked).messages, Taken(strays=True)).messages
    first, second, third = (call.id for call in found[1].tool_calls)
    assert all(len(each) == 9 and each.isalnum() for each in (first, second, third))
    assert [message.tool_call_id for message in found[2:]] == [second, first, third, "h"]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (30, 30), (0, 0), (0.5, 0.5), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("45", 45),
        (-1, math.inf), ("-1s", math.inf), ("9" * 400, math.inf),
    ],
)  # fmt: skip
def test_the_time_that_a_model_is_kept_is_read_as_ollama_reads_it(given, seconds):
    assert kept_seconds(given) == seconds


@pytest.mark.parametrize("given", ["", "m", "5 minutes", "5m3", True, [], 10**400, "1d"])
def test_another_time_is_refused(given):
    with pytest.raises(BadSetting, match="keep_alive cannot be"):
        kept_seconds(given)


def test_documents_of_text_are_read_and_other_blocks_left_out_with_a_notice():
    text = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "hello"},
    }
    pdf = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
    }
    search = {
        "type": "search_result",
        "source": "u",
        "title": "t",
        "content": [{"type": "text", "text": "found"}],
    }
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [pdf, {"type": "tool_reference", "tool_name": "f"}],
    }
    notices = []
    found = anthropic.messages_of(
        None,
        [
            {"role": "user", "content": [text, search]},
            {
                "role": "assistant",
                "content": [{"type": "server_tool_use", "id": "s", "name": "w", "input": {}}],
            },
            {"role": "user", "content": [result]},
        ],
    )
    messages = prompt_of(found, notices).messages
    assert [(message.role, message.content) for message in messages] == [
        ("user", "T\nhello\nt\nu\nfound"),
        ("assistant", ""),
        ("tool", "[a file that this model cannot read]"),
    ]
    assert [word in " ".join(notices) for word in ("document", "tool_reference", "server_tool_use")] == [
        True
    ] * 3


def test_two_answers_at_the_end_and_reasoning_among_the_parts_are_kept():
    parts = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "One"}]
    last = {"role": "assistant", "content": "Two"}
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts}, last]
    assert [*chat_prompt(Fields({"messages": asked})).messages] == [
        Message("user", "a"),
        Message("assistant", "One", "hm"),
        Message("assistant", "Two"),
    ]


@pytest.mark.parametrize("given", ["any", {"type": "any"}, {"type": "required"}])
def test_a_choice_of_tools_has_any_form(given):
    tools = [{"name": "f", "input_schema": {"type": "object"}}] * 2
    options = tool_options(Fields({"tools": tools, "tool_choice": given}))
    (tool,) = read_tools(options["tools"])
    assert (options["tool_choice"], tool.called) == ("required", "f")
    assert "several tools are called f" in tool.notice


def test_fields_of_messages_beside_a_text_are_named_in_a_notice():
    fields = Fields({"prompt": "a", "think": True, "system": "Be brief.", "top_k": 1})
    fields.as_text()
    assert [*fields.rest] == ["prompt", "top_k"]
    assert [word in fields.notices[at] for at, word in enumerate(("system", "think"))] == [True] * 2
