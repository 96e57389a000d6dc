"""llama-server's own interface: what its clients read."""

import json

import pytest

from localspec.engine.messages import Answer, Infill, LoadPair
from localspec.serve.pairs import Chosen
from localspec.serve.replies import Asked

PROMPT = {"prompt": "def add(a, b):", "n_predict": 6, "temperature": 0}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def lines_of(http, path, body):
    with http.stream("POST", path, json=body) as answer:
        return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]


def test_health_and_props(http):
    assert http.get("/health").json() == {"status": "ok"}
    props = http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert "messages" in props["chat_template"]
    assert props["modalities"] == {"vision": False, "audio": False}


def test_a_completion_whole_and_in_a_stream(http):
    whole = http.post("/completion", json=PROMPT).json()
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 6)
    assert len(whole["tokens"]) == 6
    *pieces, last = lines_of(http, "/completion", PROMPT | {"stream": True})
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert last["timings"]["predicted_n"] == 6
    assert last["content"] == ""
    ended = http.post("/completion", json=PROMPT | {"stop": [whole["content"][4:8]]}).json()
    assert (ended["stop_type"], ended["stopping_word"]) == ("word", whole["content"][4:8])


def test_tokens_there_and_back(http):
    text = "Grüße, 世界"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    pieces = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    assert http.post("/detokenize", json={"tokens": [10**6]}).status_code == 400


def test_the_prompt_of_a_conversation(http):
    prompt = http.post("/apply-template", json={"messages": MESSAGES}).json()["prompt"]
    assert prompt.index("Be brief.") < prompt.index("Hello")


def test_metrics_have_the_names_of_llama_server(http):
    http.post("/completion", json=PROMPT)
    text = http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["llamacpp:tokens_predicted_total"]) >= 6
    assert float(values["localspec:replies_total"]) >= 1
    assert 'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"}' in values
    assert "vllm:" not in text


def test_tokens_are_banned_in_llama_servers_own_form(http):
    first = http.post("/completion", json=PROMPT).json()["tokens"][0]
    banned = http.post("/completion", json=PROMPT | {"logit_bias": [[first, False]]}).json()
    assert banned["tokens"][0] != first
    assert http.post("/completion", json=PROMPT | {"logit_bias": [["x", 1]]}).status_code == 400


def test_slots_are_told_and_their_caches_are_nobodys_business(http):
    (slot,) = http.get("/slots").json()
    assert (slot["id"], slot["is_processing"], slot["speculative"]) == (0, False, True)
    props = http.get("/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (1, slot["n_ctx"])
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200


def test_the_probabilities_of_tokens_whole_and_in_a_stream(http):
    asked = PROMPT | {"n_probs": 3}
    entries = http.post("/completion", json=asked).json()["completion_probabilities"]
    told = [
        e
        for line in lines_of(http, "/completion", asked | {"stream": True})
        for e in line.get("completion_probabilities", [])
    ]
    assert [e["id"] for e in told] == [e["id"] for e in entries]
    assert all(e["id"] == e["top_logprobs"][0]["id"] and len(e["top_logprobs"]) == 3 for e in entries)
    assert "completion_probabilities" not in http.post("/completion", json=PROMPT).json()


def test_a_model_without_marks_for_a_middle_says_so(http):
    answer = http.post("/infill", json={"input_prefix": "def f(", "input_suffix": "return a"})
    assert answer.status_code == 501
    assert "cannot fill in text: it has no infill tokens" in answer.json()["error"]["message"]


def test_no_tokens_are_written_where_none_are_wanted_and_the_prompt_is_read(http):
    body = {"prompt": "def multiply(one, other):", "temperature": 0}
    read = http.post("/completion", json=body | {"n_predict": 0}).json()
    assert (read["content"], read["tokens_predicted"], read["stop_type"]) == ("", 0, "limit")
    again = http.post("/completion", json=body | {"n_predict": 2}).json()
    assert again["timings"]["prompt_n"] <= 1


def test_only_the_wanted_fields_are_answered(http):
    wanted = ["content", "timings/predicted_n", "timings/nothing", "nothing"]
    found = http.post("/completion", json=PROMPT | {"response_fields": wanted}).json()
    assert found.keys() == {"content", "timings/predicted_n"}
    *_, last = lines_of(http, "/completion", PROMPT | {"response_fields": wanted, "stream": True})
    assert last.keys() == {"content", "timings/predicted_n"}


def test_a_late_reply_ends_at_a_line_end(http):
    body = {"prompt": "x", "n_predict": 1500, "regex": "([a-z]{4}\n){100}", "t_max_predict_ms": 1}
    found = http.post("/completion", json=body).json()
    assert found["stop_type"] == "limit"
    assert 1 <= found["content"].count("\n") < 100


def test_texts_and_tokens_may_be_mixed_and_a_text_be_an_object(http):
    tokens = http.post("/tokenize", json={"content": "def add", "add_special": True}).json()["tokens"]
    wanted = http.post("/completion", json={**PROMPT, "prompt": "def add(a"}).json()["tokens_evaluated"]
    rest = len(http.post("/tokenize", json={"content": "(a"}).json()["tokens"])
    mixed = http.post("/completion", json={**PROMPT, "prompt": [*tokens, "(a"]}).json()
    assert mixed["tokens_evaluated"] == len(tokens) + rest
    found = http.post("/completion", json={**PROMPT, "prompt": {"prompt_string": "def add(a"}}).json()
    assert found["tokens_evaluated"] == wanted
    seen = http.post(
        "/completion", json={**PROMPT, "prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}
    )
    assert seen.status_code == 400


def test_the_neutral_values_of_llama_server_ask_for_nothing(http):
    neutral = {"json_schema": {}, "grammar": "", "mirostat": 0, "typical_p": 1.0, "stop": []}
    assert http.post("/completion", json=PROMPT | neutral).json()["tokens_predicted"] == 6
    only = http.post("/completion", json=PROMPT | {"json_schema": {}, "n_predict": 100, "regex": ""}).json()
    json.loads(only["content"])


def test_a_message_that_no_context_holds_blames_the_request(http):
    huge = {"messages": [{"role": "user", "content": "hello world " * 2_500_000}]}
    assert http.post("/v1/chat/completions", json=huge).status_code == 400


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/embeddings", "/embedding", "/v1/rerank", "/api/embed", "/api/embeddings"]
)
def test_embeddings_are_refused_with_the_reason(http, path):
    answer = http.post(path, json={"model": "demo", "input": "x"})
    assert (answer.status_code, "makes no embeddings" in answer.text) == (501, True)
    assert answer.headers["x-should-retry"] == "false", "clients would ask twice more"


@pytest.mark.parametrize(
    ("options", "prompts", "background"),
    [
        ({"max_tokens": 64}, (Answer(0, messages=({},)),), True),
        ({"max_tokens": 65}, (Answer(0, messages=({},)),), False),
        ({}, (Answer(0, messages=({},)),), False),
        ({"max_tokens": 64, "tools": [1]}, (Answer(0, messages=({},)),), False),
        ({"max_tokens": 8}, (Answer(0, text="x"),), False),
        ({"max_tokens": 8}, (Answer(0, infill=Infill("a", "b")),), False),
    ],
)
def test_titles_are_background_and_completions_never(options, prompts, background):
    assert Asked(Chosen("demo", LoadPair("demo")), prompts, options, stream=False).background == background
