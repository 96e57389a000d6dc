"""llama-server's own interface: what its clients read."""

import json

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


def test_metrics_have_both_families_of_names(http):
    http.post("/completion", json=PROMPT)
    text = http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["llamacpp:tokens_predicted_total"]) >= 6
    assert values["vllm:generation_tokens_total"] == values["llamacpp:tokens_predicted_total"]
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}' in values


def test_tokens_are_banned_in_llama_servers_own_form(http):
    first = http.post("/completion", json=PROMPT).json()["tokens"][0]
    banned = http.post("/completion", json=PROMPT | {"logit_bias": [[first, False]]}).json()
    assert banned["tokens"][0] != first
    assert http.post("/completion", json=PROMPT | {"logit_bias": [["x", 1]]}).status_code == 400


def test_the_only_slot_and_what_cannot_be_done_with_it(http):
    (slot,) = http.get("/slots").json()
    assert (slot["n_ctx"], slot["is_processing"], slot["speculative"]) == (2048, False, True)
    assert http.post("/slots/0?action=save", json={}).status_code == 501


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
    assert "has no tokens for text in the middle" in answer.json()["error"]["message"]
