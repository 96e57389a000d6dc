"""OpenAI's own client against the Responses interface, as Codex uses it."""

import json

import openai
import pytest

from localspec.serve.openai import prompt_of
from localspec.serve.responses import messages_of

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def client(endpoint):
    with openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(client, **options):
    asked = {
        "model": "demo",
        "input": "What is speculative decoding?",
        "max_output_tokens": 24,
        "temperature": 0,
    }
    return client.responses.create(**{**asked, **options})


def test_a_response_has_text_and_usage(client):
    response = ask(client)
    assert response.output_text.startswith("A pair of models")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 24


def test_a_stream_builds_the_same_response(client):
    asked = {
        "model": "demo",
        "input": "What is speculative decoding?",
        "max_output_tokens": 24,
        "temperature": 0,
    }
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == ask(client).output_text


def test_a_function_is_called_and_its_output_read(client):
    tools = [WEATHER, {"type": "web_search"}]
    asked = {
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 200,
    }
    response = ask(client, **asked)
    call = response.output[-1]
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city"}
    going_on = [
        {"role": "user", "content": [{"type": "input_text", "text": "Is it sunny?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    assert ask(client, input=going_on, instructions="Be brief.", tools=tools).usage.output_tokens > 0


def test_what_would_need_a_store_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="nothing is stored here"):
        ask(client, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="the list of messages is empty"):
        ask(client, input=[{"type": "image"}])
    with pytest.raises(openai.BadRequestError, match="input is missing from the request"):
        ask(client, input=None)


def test_a_conversation_with_custom_tools_and_a_vendors_goes_on(client):
    history = [
        {"role": "user", "content": "Change the file."},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
    ]
    tools = [{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}]
    answer = ask(client, input=history, tools=tools)
    assert answer.usage.output_tokens > 0
    assert answer.timings["localspec"]["notices"][:3] == [
        "items of the type 'web_search_call' were left out",
        "tools of the type 'custom' are no functions and were left out",
        "tools of the type 'web_search' are no functions and were left out",
    ]


def test_items_of_every_kind_become_messages():
    notices = []
    found = messages_of(
        "Be brief.",
        [
            {"role": "user", "content": "List the files."},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {
                "type": "local_shell_call",
                "call_id": "a",
                "action": {"command": ["ls"]},
                "status": "completed",
            },
            {"type": "local_shell_call_output", "id": "a", "output": "x.py"},
            {
                "type": "apply_patch_call",
                "call_id": "b",
                "operation": {"type": "delete_file", "path": "x.py"},
            },
            {"type": "apply_patch_call_output", "call_id": "b", "output": {"ok": True}},
            {"type": "mcp_list_tools", "id": "m", "tools": []},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "gone"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Gone."}]},
            {"type": "compaction", "encrypted_content": "..."},
            {"role": "user", "content": "Thanks."},
        ],
        notices,
    )
    assert [message["role"] for message in found] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    calls = [call for message in found for call in message.get("tool_calls", ())]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [
        ("a", "local_shell"),
        ("b", "apply_patch"),
    ]
    assert calls[0]["function"]["arguments"] == {"action": {"command": ["ls"]}}
    assert [(m["tool_call_id"], m["content"]) for m in found if m["role"] == "tool"] == [
        ("a", "x.py"), ("b", '{"ok": true}'),
    ]  # fmt: skip
    assert (found[2]["reasoning_content"], found[6]["reasoning_content"]) == ("hm", "gone")
    assert notices == [
        f"items of the type {kind!r} were left out" for kind in ("mcp_list_tools", "compaction")
    ]
    prompt_of(found)
