"""OpenAI's own client against the Responses interface, as Codex uses it."""

import openai
import pytest

pytestmark = pytest.mark.process

ASKED = {"model": "demo", "input": "What is speculative decoding?", "max_output_tokens": 24, "temperature": 0}


def ask(client, **options):
    return client.responses.create(**{**ASKED, **options})


def test_a_response_has_text_and_usage(client):
    response = ask(client)
    assert response.output_text.startswith("A pair of models")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"
    assert response.usage.output_tokens == 24


def test_a_stream_builds_the_same_response(client):
    with client.responses.stream(**ASKED) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert [event.item.status for event in events if event.type == "response.output_item.done"] == [
        "incomplete"
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == ask(client).output_text


def test_what_would_need_a_store_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="nothing is stored here"):
        ask(client, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="the list of messages is empty"):
        ask(client, input=[{"type": "image"}])
    with pytest.raises(openai.BadRequestError, match="input is missing from the request"):
        ask(client, input=None)


def test_items_and_tools_of_a_vendor_are_left_out_with_a_notice(client):
    history = [
        {"role": "user", "content": "Change the file."},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "*** Begin Patch"},
    ]
    tools = [{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}]
    answer = ask(client, input=history, tools=tools)
    assert answer.usage.output_tokens > 0
    assert answer.timings["localspec"]["notices"][:3] == [
        'items of the type "web_search_call" were left out',
        'tools of the type "custom" are not functions and were left out',
        'tools of the type "web_search" are not functions and were left out',
    ]


def test_functions_in_a_namespace_are_called_with_their_own_name(client):
    inner = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "namespace", "name": "mcp__files__", "description": "files", "tools": [inner]}]
    choice = {"type": "function", "name": "read", "namespace": "mcp__files__"}
    answer = ask(client, input="Read it.", tools=tools, tool_choice=choice, max_output_tokens=60)
    (call,) = answer.output
    assert (call.name, call.namespace) == ("read", "mcp__files__")
    assert answer.tools[0].type == "namespace"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_file"}]}
    again = ask(client, input=[{"role": "user", "content": "Read it."}, call.to_dict(), result], tools=tools)
    assert 'parts of the type "input_file" were left out' in again.timings["localspec"]["notices"]
