"""Every field of a client's request is obeyed, refused by name, or named in a notice, as the table has it."""

import gzip
import json
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path

import anthropic.types.beta.message_create_params as beta
import anthropic.types.message_count_tokens_params as counted
import anthropic.types.message_create_params as messages
import ollama._types as ollama
import openai.types.chat.completion_create_params as chat
import openai.types.completion_create_params as completions
import openai.types.responses.response_create_params as responses
import pytest

from localspec.serve.http import LARGEST_BODY

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "interfaces.md"
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
FLAT = {"type": "function", "name": "f", "parameters": {}}
OPTIONS = {"num_predict": 2}
# By the interface of the table: types of the package, path, and the smallest request.
CLIENTS = {
    "chat": ([chat.CompletionCreateParamsBase], "/v1/chat/completions", {"messages": USER, "max_tokens": 2}),
    "completions": (
        [completions.CompletionCreateParamsBase],
        "/v1/completions",
        {"prompt": "hi", "max_tokens": 2},
    ),
    "responses": (
        [responses.ResponseCreateParamsBase],
        "/v1/responses",
        {"input": "hi", "max_output_tokens": 2},
    ),
    "messages": (
        [messages.MessageCreateParamsBase, beta.MessageCreateParamsBase, counted.MessageCountTokensParams],
        "/v1/messages",
        {"messages": USER, "max_tokens": 2},
    ),
    "/api/chat": ([ollama.ChatRequest], "/api/chat", {"messages": USER, "stream": False, "options": OPTIONS}),
    "/api/generate": (
        [ollama.GenerateRequest],
        "/api/generate",
        {"prompt": "hi", "stream": False, "options": OPTIONS},
    ),
    "options": ([ollama.Options], "/api/chat", {"messages": USER, "stream": False, "options": OPTIONS}),
    "vLLM": ([], "/v1/chat/completions", {"messages": USER, "max_tokens": 2}),
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
# Values of fields whose type does not show a useful one; a pair has the fields that the value needs.
VALUES = {
    "messages": [USER],
    "prompt": ["hi", ["hi", "ho"]],
    "input": ["hi", [{"role": "user", "content": "hi"}]],
    "model": ["demo"],
    "system": ["be brief", [{"type": "text", "text": "be brief"}]],
    "tools": [[]],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    ],
    "tool_choice": ["auto", "none"],
    "logit_bias": [{"5": 1}],
    "stop": ["x", ["x", "y"]],
    "stop_sequences": [["x"]],
    "stream_options": [{"include_usage": True}],
    "prediction": [{"type": "content", "content": "ho"}],
    "modalities": [["text"], ["text", "audio"]],
    "audio": [{"voice": "a", "format": "mp3"}],
    "function_call": ["auto", {"name": "f"}],
    "functions": [[{"name": "f"}]],
    "web_search_options": [{"search_context_size": "low"}],
    "metadata": [{"user_id": "a"}],
    "logprobs": [True, 2],
    "top_logprobs": [(2, {"logprobs": True})],
    "text": [{"format": {"type": "text"}, "verbosity": "low"}],
    "reasoning": [{"effort": "low"}],
    "thinking": [{"type": "disabled"}, {"type": "adaptive"}],
    "output_config": [{"effort": "low"}],
    "format": ["json", SCHEMA],
    "options": [{"num_predict": 2}],
    "think": [True, False, "low"],
    "keep_alive": ["5m", 60],
    "images": [[]],
    "context": [[1, 2]],
    "conversation": ["c", {"id": "c"}],
    "thread": [{"type": "create"}],
    "top_k": [5, -1],
    "n": [1, 2],
    "best_of": [1, 2],
    "guided_json": [SCHEMA],
    "guided_choice": [["a", "b"]],
    "guided_regex": ["a+"],
    "guided_grammar": ['root ::= "a"'],
    "structured_outputs": [{"choice": ["a"]}, {"json": SCHEMA}, {"regex": "a"}],
    "bad_words": [["a"]],
    "stop_token_ids": [[3]],
    "allowed_token_ids": [[3]],
    "min_tokens": [1],
    "suffix": [""],
    "background": [True],
    "prompt_cache_retention": ["24h"],
    "truncation": ["auto", "disabled"],
    "length_penalty": [0.5],
    "min_p": [0.1],
    "repetition_penalty": [1.1],
}
SAMPLES = {bool: [True, False], int: [1], float: [0.5], str: ["a"], list: [["a"]], dict: [{"a": 1}]}


def rows():
    """The table: by interface and field, how the field is treated."""
    table = PAGE.read_text("utf-8").partition("| field | interfaces | what happens |")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, interfaces, happens = (cell.strip() for cell in line.strip("|").split(" | "))
        for name in re.findall(r"`([^`]+)`", names):
            for interface in interfaces.split(", "):
                assert (interface, name) not in found, f"{name} of {interface} is in two rows"
                found[interface, name] = happens
    return found


def fields_of(kind):
    hints = getattr(kind, "model_fields", None)
    return {name: field.annotation for name, field in hints.items()} if hints else typing.get_type_hints(kind)


def samples(hint):
    """Values of a type: each literal, and one of each other kind."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return [*typing.get_args(hint)]
    if origin in (typing.Union, types.UnionType, typing.Required, typing.Annotated):
        return [value for part in typing.get_args(hint) for value in samples(part) if value is not None]
    kind = origin if isinstance(origin, type) else hint
    named = next((each for each in SAMPLES if isinstance(kind, type) and issubclass(kind, each)), None)
    return SAMPLES.get(named, [{"a": 1}] if typing.is_typeddict(hint) else [["a"]])


def literals(hint):
    """Every literal value of a type, in whatever parts it has."""
    if typing.get_origin(hint) is typing.Literal:
        return [*typing.get_args(hint)]
    if typing.is_typeddict(hint) or typing.get_origin(hint) in (list, dict, Iterable):
        return []
    return [value for part in typing.get_args(hint) for value in literals(part)]


HINTS = {
    (interface, name): hint
    for interface, (kinds, _, _) in CLIENTS.items()
    for kind in kinds
    for name, hint in fields_of(kind).items()
}
NEUTRAL = ({}, [], "", "none", 0, False, None)


def test_the_table_has_every_field_of_the_clients_packages():
    found = rows()
    assert sorted(HINTS.keys() - found.keys()) == [], (
        "new fields of a client: say in docs/interfaces.md what happens"
    )
    assert {key for key in found.keys() - HINTS.keys() if key[0] != "vLLM"} == set(), (
        "no client has these fields"
    )


@pytest.mark.parametrize("interface", CLIENTS)
def test_every_value_is_obeyed_or_named(http, interface):
    _, path, base = CLIENTS[interface]
    found, wrong = rows(), []
    for of, name in found:
        hint = HINTS.get((of, name), str)
        given = [*(VALUES.get(name) or samples(hint)), *literals(hint)] if of == interface else []
        for value in given:
            value, needed = value if isinstance(value, tuple) else (value, {})
            inner = {"options": {**OPTIONS, name: value}} if interface == "options" else {name: value}
            answer = http.post(path, json={**base, **needed, **inner})
            happens, body = found[interface, name].partition(":")[0], answer.text
            ignored = f"the field {name} has no effect" in body
            if not is_as(happens, name, value, answer.status_code, body, ignored):
                wrong.append((name, value, happens, answer.status_code, body[:300]))
    assert wrong == []


def is_as(happens, name, value, status, body, ignored):
    named = status in (400, 404, 501) and name.rpartition(".")[2] in body
    if happens == "refused":
        return named or (value in NEUTRAL and status == 200)
    if happens == "no effect":
        return (status == 200 and ignored) or named
    return (status == 200 and not ignored) or named


def test_a_restriction_of_vllm_is_obeyed(http):
    for restriction, wanted in (
        ({"guided_choice": ["yes", "no (never)"]}, r"yes|no \(never\)"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"guided_json": SCHEMA}, r'\{\s*"a": ?null\s*\}'),
        ({"structured_outputs": {"choice": ["no"]}}, "no"),
        ({"guided_grammar": 'root ::= "ab"'}, "ab"),
    ):
        body = {"messages": USER, "max_tokens": 60, "temperature": 0, **restriction}
        content = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        assert re.fullmatch(wanted, content), restriction


def test_allowed_tools_are_the_only_ones(http):
    other = {"type": "function", "function": {"name": "g"}}
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "f"}}]}
        body = {"messages": USER, "max_tokens": 60, "tools": [TOOL, other]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        answer = http.post("/v1/chat/completions", json={**body, "tool_choice": choice}).json()
        calls = answer["choices"][0]["message"].get("tool_calls", [])
        assert {call["function"]["name"] for call in calls} <= {"f"}
        assert calls or mode == "auto"
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]}
    body = {"input": "hi", "tools": [FLAT], "tool_choice": choice}
    assert "tool_choice allows" in http.post("/v1/responses", json=body).json()["error"]["message"]


def test_negative_numbers_are_off_and_greedy_as_on_other_servers(http):
    base = {"messages": USER, "max_tokens": 8, "seed": 5}
    texts = [
        http.post("/v1/chat/completions", json={**base, **given}).json()["choices"][0]["message"]["content"]
        for given in ({"temperature": -1}, {"temperature": 0}, {"top_k": -1}, {"top_k": 0})
    ]
    assert texts[::2] == texts[1::2]


def test_a_packed_body_is_read_and_another_encoding_named(http):
    body = gzip.compress(json.dumps({"messages": USER, "max_tokens": 2}).encode())
    answers = [
        http.post("/v1/chat/completions", content=body, headers={"content-encoding": encoding})
        for encoding in ("gzip", "br", "gzip")
    ]
    assert [answer.status_code for answer in answers] == [200, 415, 200]
    broken = http.post("/v1/chat/completions", content=b"{}", headers={"content-encoding": "gzip"})
    assert (broken.status_code, "not gzip" in broken.text) == (400, True)
    bomb = gzip.compress(b" " * (LARGEST_BODY + 2))
    assert http.post("/v1/messages", content=bomb, headers={"content-encoding": "gzip"}).status_code == 413


def test_paths_may_have_other_slashes_and_errors_have_the_form_of_their_interface(http):
    assert http.get("/v1/models/").json() == http.get("//v1/models").json() == http.get("/v1/models").json()
    assert http.post("/v1/chat/completions/", json={"messages": USER, "max_tokens": 2}).status_code == 200
    assert http.get("/v1/messages").json()["type"] == "error"
    web = {"origin": "https://evil.example"}
    assert http.post("/v1/messages", json={}, headers=web).json()["type"] == "error"
    assert http.post("/api/chat", json={}, headers=web).json().keys() == {"error"}
