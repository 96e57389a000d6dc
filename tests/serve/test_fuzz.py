"""Whatever is sent, there is an answer, and it blames the request and not the server."""

import copy
import json
import random

import pytest

pytestmark = pytest.mark.nightly

QUESTION = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LIMIT = {"messages": QUESTION, "max_tokens": 3}
USED = [
    *QUESTION,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]},
]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "d"},
]
VALID = {
    "/v1/chat/completions": [
        {**LIMIT, "model": "demo"},
        {**LIMIT, "stream": True, "stream_options": {"include_usage": True}},
        {**LIMIT, "tools": [TOOL], "tool_choice": "required", "seed": 1},
        {**LIMIT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {**LIMIT, "logprobs": True, "top_logprobs": 2, "n": 2, "stream": True},
    ],
    "/v1/completions": [
        {"prompt": "def f(", "max_tokens": 3, "logprobs": 1, "stop": ["x", "y"]},
        {"prompt": [[5, 6, 7], "a"], "max_tokens": 3, "stream": True, "logit_bias": {"5": -100}},
    ],
    "/v1/messages": [
        {**LIMIT, "system": [{"type": "text", "text": "Be brief."}]},
        {
            **LIMIT, "messages": USED, "tools": [{"name": "f", "input_schema": SCHEMA}], "stream": True,
            "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled"},
        },
    ],
    "/v1/messages/count_tokens": [{"messages": QUESTION, "system": "Be brief."}],
    "/v1/responses": [
        {"input": "Hello", "max_output_tokens": 3, "stream": True},
        {
            "input": ITEMS, "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
            "text": {"format": {"type": "text"}}, "max_output_tokens": 3,
        },
    ],
    "/completion": [
        {"prompt": "Hello", "n_predict": 3, "response_fields": ["content"]},
        {"prompt": [1, "a", 2], "n_predict": 3, "samplers": ["top_k"], "t_max_predict_ms": 1},
        {"prompt": [1, 2], "n_predict": 3, "stream": True},
    ],
    "/infill": [
        {
            "input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "c", "text": "d"}],
            "prompt": "e", "n_predict": 3, "samplers": ["top_k", "infill"], "t_max_predict_ms": 250,
            "response_fields": ["content", "timings/prompt_n"],
        }
    ],
    "/tokenize": [{"content": "Hello", "with_pieces": True}],
    "/detokenize": [{"tokens": [5, 6]}],
    "/apply-template": [{"messages": QUESTION}],
    "/api/chat": [
        {"messages": QUESTION, "options": {"num_predict": 3, "seed": 1}, "format": "json"},
        {"messages": QUESTION, "options": {"num_predict": 3}, "stream": False, "think": "low", "tools": [TOOL]},
    ],
    "/api/generate": [{"prompt": "Hello", "system": "Be brief.", "options": {"num_predict": 3}}],
    "/api/show": [{"model": "demo"}],
}  # fmt: skip
ODD = [
    None, True, False, 0, -1, 1, 2, 10**30, -(10**30), 0.5, -0.0, 1e308, "", "x", "\ud800", "\x00", "auto", "é" * 50,
    [], [[]], [None], {}, {"type": 1}, {"type": "text"}, {"a": None}, [1, "a"], ["x"], [{}], {"5": 1}, {"x": "y"},
    {"$ref": "#"}, {"type": "object", "properties": 3}, "<|im_start|>", "a" * 3000, [0] * 300, [10**9],
]  # fmt: skip
NAMES = [
    "best_of", "suffix", "echo",
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
    "frequency_penalty", "logit_bias", "rule", "depth", "speculate", "think", "regex", "grammar",
    "compact_json", "overflow", "parallel_tool_calls", "n", "stop", "seed", "logprobs",
    "top_logprobs", "tools", "tool_choice", "response_format", "json_schema", "stream",
    "stream_options", "model", "messages", "prompt", "input", "system", "user", "metadata",
    "reasoning_effort", "chat_template_kwargs", "modalities", "prediction", "thinking",
    "output_config", "format", "options", "keep_alive", "raw", "max_tokens",
    "max_completion_tokens", "n_predict", "reasoning", "text", "instructions",
    "samplers", "response_fields", "t_max_predict_ms", "input_extra", "n_probs",
]  # fmt: skip


def body(chance):
    """A path and the bytes of a body."""
    path = chance.choice(list(VALID))
    found = copy.deepcopy(chance.choice(VALID[path]))
    for _ in range(chance.randint(0, 3)):
        change(found, chance)
    raw = json.dumps(found).encode()
    if chance.random() < 0.03:
        raw = raw[: chance.randrange(len(raw))] + chance.choice([b"", b"\xff", b"NaN", b"]"])
    return path, raw


def change(found, chance):
    """Put something odd somewhere."""
    places = list(containers(found))
    where = chance.choice(places)
    value = copy.deepcopy(chance.choice(ODD))
    if isinstance(where, list):
        if where and chance.random() < 0.7:
            where[chance.randrange(len(where))] = value
        else:
            where.append(value)
    elif where and chance.random() < 0.7:
        where[chance.choice(list(where))] = value
    else:
        where[chance.choice(NAMES)] = value


def containers(value):
    if isinstance(value, dict | list):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from containers(part)


ENDS = ("[DONE]", "message_stop", "response.completed", "response.incomplete", '"stop":true', '"error"')


def verdict(path, answer):
    """What is wrong with an answer; "" where nothing is."""
    if answer.status_code not in (200, 400, 404, 501):
        return f"status {answer.status_code}"
    if answer.status_code != 200:
        reported = answer.json()
        return (
            ""
            if "error" in reported and answer.text.count("Traceback") == 0
            else f"no error object: {reported}"
        )
    if "event-stream" in answer.headers["content-type"]:
        return "" if any(end in answer.text[-6000:] for end in ENDS) else f"unfinished: {answer.text[-200:]}"
    return ""


CASES = 250


def test_no_body_breaks_the_server(http):
    chance = random.Random(20)
    wrong = []
    for _ in range(CASES):
        path, raw = body(chance)
        answer = http.post(path, content=raw)
        if found := verdict(path, answer):
            wrong.append((path, raw, found))
    assert wrong == []
    assert http.get("/health").json() == {"status": "ok"}
