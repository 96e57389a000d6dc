"""OpenAI's own client against the endpoint."""

import json

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

pytestmark = pytest.mark.process

QUESTION = [{"role": "user", "content": "What is speculative decoding?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city.", "parameters": CITY},
}


def ask(client, **options):
    return client.chat.completions.create(
        **{"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 24, **options}
    )


def test_an_answer_has_text_usage_and_timings(client):
    reply = ask(client, extra_body={"depth": 4})
    assert reply.choices[0].message.content.startswith("A pair of models")
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 24
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 24
    assert reply.timings["predicted_n"] == 24
    assert reply.timings["draft_n_accepted"] <= reply.timings["draft_n"]
    sources = reply.timings["localspec"]["tokens_by_source"]
    assert sum(sources.values()) == 24


def test_every_chunk_is_what_openai_says_a_chunk_is(http):
    body = {"model": "demo", "messages": QUESTION, "stream": True, "max_tokens": 8, "n": 2}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [ChatCompletionChunk.model_validate(json.loads(line[6:])) for line in lines[:-1]]
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}
    whole = http.post("/v1/chat/completions", json={**body, "stream": False}).json()
    assert ChatCompletion.model_validate(whole).usage.completion_tokens == 16


def test_a_stop_string_ends_the_reply_before_it(client):
    reply = ask(client, stop=["models"])
    assert reply.choices[0].message.content == "A pair of "
    assert reply.choices[0].finish_reason == "stop"


def test_json_that_a_schema_describes(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    reply = ask(client, response_format=wanted, max_tokens=100)
    assert set(json.loads(reply.choices[0].message.content)) == {"name", "age"}
    assert reply.timings["localspec"]["tokens_by_source"]["grammar"] > 0


def test_the_same_call_has_a_new_id_in_every_reply(client):
    asked = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 200, "parallel_tool_calls": False}
    calls = [ask(client, **asked).choices[0].message.tool_calls[0] for _ in range(3)]
    assert len({call.function.arguments for call in calls}) == 1
    assert len({call.id for call in calls}) == 3


def test_speculation_is_the_callers(client):
    plain = ask(client, extra_body={"speculate": False})
    deep = ask(client, extra_body={"depth": 2, "rule": "greedy"})
    assert "draft_n" not in plain.timings
    assert len(deep.timings["localspec"]["acceptance_by_position"]) == 2
    assert plain.choices[0].message.content == deep.choices[0].message.content


def test_the_target_alone_is_a_model_too(client):
    names = [model.id for model in client.models.list()]
    assert "demo" in names
    assert "demo:target" not in names, "one entry a model"
    target = ask(client, model="demo:target")
    assert "draft_n" not in target.timings
    assert target.choices[0].message.content == ask(client).choices[0].message.content


def test_text_is_continued_from_text_and_from_tokens(client, http):
    def complete(prompt):
        return client.completions.create(model="demo", prompt=prompt, max_tokens=8, temperature=0)

    tokens = http.post("/tokenize", json={"content": "def add(a, b):", "add_special": True}).json()["tokens"]
    by_text, by_tokens = complete("def add(a, b):"), complete(tokens)
    assert by_text.choices[0].text == by_tokens.choices[0].text
    both = complete(["One", "Two"])
    assert [c.index for c in both.choices] == [0, 1]
    assert both.usage.prompt_tokens == sum(complete(text).usage.prompt_tokens for text in ("One", "Two"))
    stream = client.completions.create(
        model="demo", prompt="def add(a, b):", max_tokens=8, temperature=0, stream=True
    )
    chunks = list(stream)
    assert all(isinstance(chunk, Completion) for chunk in chunks)
    assert "".join(chunk.choices[0].text for chunk in chunks) == by_text.choices[0].text


def test_the_likelihood_of_every_token(client):
    whole = ask(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(whole) == 24
    for score in whole:
        assert score.token == score.top_logprobs[0].token  # greedy
        numbers = [each.logprob for each in score.top_logprobs]
        assert numbers == sorted(numbers, reverse=True)


def test_likelihoods_of_a_continued_text(client):
    choice = client.completions.create(
        model="demo", prompt="def add(a, b):", max_tokens=6, logprobs=2
    ).choices[0]
    assert "".join(choice.logprobs.tokens).startswith(choice.text)
    assert choice.logprobs.text_offset[0] == 0
    assert len(choice.logprobs.top_logprobs[0]) == 2


@pytest.mark.parametrize(
    ("options", "remarks"),
    [
        ({"max_tokens": -2}, "max_tokens is -2"),
        ({"n": 99}, "n cannot be 99"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "which is not one of the tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, 'names "x", which is not one of'),
        ({"extra_body": {"mirostat": 2}}, "mirostat is not supported"),
        ({"top_logprobs": 2}, "top_logprobs is given without logprobs"),
        ({"response_format": {"type": "xml"}}, 'response_format cannot be of type "xml"'),
        ({"messages": [{"role": "user", "content": "long " * 3000}]}, "available context size of 2,048"),
    ],
)
def test_what_cannot_be_done_is_reported_in_a_sentence(client, options, remarks):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **options)
    assert remarks in caught.value.body["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_field_that_nobody_knows_has_no_effect_and_is_named(http, stream):
    body = {"messages": QUESTION, "max_tokens": 4, "wings": 2, "stream": stream}
    answer = http.post("/v1/chat/completions", json=body)
    assert "the field wings has no effect" in answer.text


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":' * 100_000, b"\xff\xfe", b"NaN"])
def test_what_is_no_json_object_is_refused(http, body):
    answer = http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large_is_refused_before_it_is_read_whole(endpoint):
    with httpx.Client(base_url=endpoint.url) as client:
        answer = client.post("/v1/chat/completions", content=b"x" * (33 * 2**20))
    assert answer.status_code == 413


def test_what_the_client_predicts_is_drafted_from_and_counted(client):
    first = ask(client, max_tokens=40)
    prediction = {"type": "content", "content": first.choices[0].message.content}
    again = ask(client, max_tokens=40, prediction=prediction, extra_body={"depth": 4})
    details = again.usage.completion_tokens_details
    assert again.choices[0].message.content == first.choices[0].message.content
    assert details.accepted_prediction_tokens > 20
    assert details.rejected_prediction_tokens < details.accepted_prediction_tokens
    assert again.timings["localspec"]["tokens_by_source"]["prediction"] == details.accepted_prediction_tokens
    with pytest.raises(openai.BadRequestError, match="prediction cannot be"):
        ask(client, prediction={"type": "content", "content": 3})


def test_whole_numbers_may_have_a_point(http):
    numbers = {"max_tokens": 3.0, "seed": 5.0, "top_k": 40.0, "n": 2.0, "depth": 2.0, "repeat_last_n": 8.0}
    found = http.post("/v1/chat/completions", json={"messages": QUESTION, **numbers}).json()
    assert found["usage"]["completion_tokens"] == 6
    refused = http.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 3.5})
    assert "max_tokens cannot be 3.5" in refused.text


def test_tools_that_are_no_functions_are_left_out_with_a_notice(client, http):
    tools = [{"type": "custom", "custom": {"name": "x"}}]
    remarks = 'tools of the type "custom" are not functions and were left out'
    assert remarks in ask(client, tools=tools).timings["localspec"]["notices"]
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    found = http.post("/v1/messages", json={"messages": QUESTION, "max_tokens": 3, "tools": tools}).json()
    notices = found["timings"]["localspec"]["notices"]
    assert any('"web_search_20250305" are not functions' in notice for notice in notices)


def test_the_context_length_stands_under_every_name_that_clients_ask_for(http):
    model = http.get("/v1/models/demo").json()
    names = ("max_model_len", "context_length")
    assert {model[name] for name in names} | {model["meta"]["n_ctx"]} == {2048}


def test_a_choice_leaves_the_beginning_of_the_prompt_as_it_is(client):
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    asked = {"tools": [WEATHER, other], "max_tokens": 4}
    first = ask(client, **asked).usage
    for choice in ("none", "required", {"type": "function", "function": {"name": "other"}}):
        usage = ask(client, tool_choice=choice, **asked).usage
        assert usage.prompt_tokens == first.prompt_tokens
        assert usage.prompt_tokens_details.cached_tokens == first.prompt_tokens - 1
