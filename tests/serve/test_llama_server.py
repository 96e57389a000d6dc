"""llama-server's own interface: what its clients read."""

import itertools
import json
from pathlib import Path
from time import sleep

import httpx
import pytest

from localspec.chat.request import request_from
from localspec.cli import main
from localspec.errors import BadSetting
from localspec.events import Stats
from localspec.prompt.messages import Message
from localspec.prompt.template import ChatTemplate
from localspec.sampler.sampling import Sampling
from localspec.serve.anthropic import as_chat
from localspec.serve.numbers import Totals, exposition
from localspec.serve.options import Fields, openai_options
from tests.processes import lives, until
from tests.serve.conftest import serving

PROMPT = {"prompt": "def add(a, b):", "n_predict": 6, "temperature": 0}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def lines_of(http, path, body):
    with http.stream("POST", path, json=body) as answer:
        return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]


@pytest.mark.process
def test_health_and_props(http):
    assert http.get("/health").json() == {"status": "ok"}
    props = http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert "messages" in props["chat_template"]
    assert props["modalities"] == {"vision": False, "audio": False}
    params = props["default_generation_settings"]["params"]
    assert (params["seed"], params["n_predict"], params["top_k"]) == (2**32 - 1, -1, 40)
    assert Path(props["model_path"]).suffix == ".gguf"
    assert Path(props["model_path"]).is_file()


def test_a_completion_whole_and_in_a_stream(http):
    whole = http.post("/completion", json=PROMPT | {"return_tokens": True}).json()
    assert http.post("/completion", json=PROMPT).json()["tokens"] == []
    assert http.post("/completions", json=PROMPT).json()["content"] == whole["content"]
    assert "choices" in http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).json()
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 6)
    assert len(whole["tokens"]) == 6
    *pieces, last = lines_of(http, "/completion", PROMPT | {"stream": True})
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [token for line in (*pieces, last) for token in line["tokens"]] == whole["tokens"]
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
    parts = [piece["piece"] for piece in pieces]
    raw = [part.encode() if isinstance(part, str) else bytes(part) for part in parts]
    assert b"".join(raw) == text.encode()
    assert http.post("/detokenize", json={"tokens": [10**6]}).status_code == 400


def test_tokens_are_banned_in_llama_servers_own_form(http):
    body = PROMPT | {"return_tokens": True}
    free = http.post("/completion", json=body).json()
    first = free["tokens"][0]
    banned = http.post("/completion", json=body | {"logit_bias": [[first, False]]}).json()
    assert banned["tokens"][0] != first
    assert banned["generation_settings"]["logit_bias"] == [{"token": first, "bias": None}]
    word = http.post("/detokenize", json={"tokens": [first]}).json()["content"]
    for given in ([[word, -100]], {word: -100}):
        assert http.post("/completion", json=body | {"logit_bias": given}).json()["tokens"][0] != first
    assert http.post("/completion", json=PROMPT | {"logit_bias": [[["x"], 1]]}).status_code == 400


def test_slots_are_reported_and_their_caches_are_nobodys_business(http):
    (slot,) = http.get("/slots").json()
    assert slot["read_ahead_n"] >= 0
    assert (slot["id"], slot["is_processing"], slot["speculative"]) == (0, False, True)
    props = http.get("/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (1, slot["n_ctx"])
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200


def test_the_next_turn_is_read_ahead_while_nobody_waits(http):
    pauses = itertools.count(1)

    def ahead():
        turns = [{"role": "user", "content": f"Count to {next(pauses)}."}]
        body = {"messages": turns, "temperature": 0, "max_tokens": 200}
        answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        sleep(1)  # the engine begins after half a second
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And on?"}]
        timings = http.post("/v1/chat/completions", json=body).json()["timings"]
        return timings["localspec"]["read_ahead_n"]

    until(ahead)
    assert http.get("/slots").json()[0]["read_ahead_n"] > 0


def test_the_probabilities_of_tokens(http):
    entries = http.post("/completion", json=PROMPT | {"n_probs": 3}).json()["completion_probabilities"]
    assert all(e["id"] == e["top_logprobs"][0]["id"] and len(e["top_logprobs"]) == 3 for e in entries)
    assert "completion_probabilities" not in http.post("/completion", json=PROMPT).json()


def test_the_probabilities_that_the_sampler_leaves(http):
    asked = PROMPT | {"n_probs": 10, "post_sampling_probs": True}
    for entry in http.post("/completion", json=asked).json()["completion_probabilities"]:
        assert [(e["id"], e["prob"]) for e in entry["top_probs"]] == [(entry["id"], 1.0)]  # temperature 0
    asked |= {"temperature": 1, "top_k": 3, "top_p": 1, "min_p": 0, "seed": 1, "repeat_penalty": 1.3}
    for entry in http.post("/completion", json=asked).json()["completion_probabilities"]:
        assert sum(e["prob"] for e in entry["top_probs"]) == pytest.approx(1.0)
        assert entry["prob"] in [e["prob"] for e in entry["top_probs"]]


def test_progress_and_timings_while_a_reply_is_written(http):
    """The first progress tells what the cache had, the last that all was read; numbers never fall."""
    wanted = {"stream": True, "return_progress": True, "timings_per_token": True, "ignore_eos": True}
    paths = {
        "/completion": {"prompt": "the quick brown fox " * 60, "n_predict": 5},
        "/v1/completions": {"prompt": "the lazy dog " * 60, "max_tokens": 5},
        "/v1/chat/completions": {"messages": MESSAGES * 20, "max_tokens": 5},
        "/v1/responses": {"input": "jumps over " * 60, "max_output_tokens": 5},
    }
    for path, body in paths.items():
        lines = lines_of(http, path, body | wanted)
        reported = [line["prompt_progress"] for line in lines if "prompt_progress" in line]
        processed = [each["processed"] for each in reported]
        assert processed[0] == reported[0]["cache"] < processed[-1] == reported[0]["total"]
        assert processed == sorted(set(processed))
        timed = [line["timings"] for line in lines if "prompt_progress" in line or "delta" in line]
        assert (timed[0]["prompt_n"], timed[0]["predicted_ms"]) == (0, 0)
        assert all(value >= 0 for each in timed for name, value in each.items() if name != "localspec")
        counts = [line["timings"]["predicted_n"] for line in lines if "timings" in line]
        assert counts == sorted(counts)
        assert counts[-1] == 5
    assert not [line for line in lines_of(http, path, body | {"stream": True}) if "prompt_progress" in line]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_biases_of_texts_and_ends_that_are_ignored(http, path):
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": PROMPT["prompt"]}
    body = asked | {"max_tokens": 1, "temperature": 0, "logprobs": True if "chat" in path else 0}

    def first(**more):
        found = http.post(path, json=body | more).json()["choices"][0]["logprobs"]
        return found["content"][0]["token"] if "chat" in path else found["tokens"][0]

    word = first()
    for given in ({word: -100}, [[word, False]]):
        assert first(logit_bias=given) != word
    long = asked | {"max_tokens": 200, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    assert http.post(path, json=long).json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.process
def test_parts_of_an_unfinished_reply_are_joined_by_empty_lines(http):
    sentence = {"role": "assistant", "content": [{"type": "text", "text": t} for t in ("Wh", "ill")]}
    found = http.post("/apply-template", json={"messages": [*MESSAGES, sentence]}).json()
    assert found["prompt"].endswith("Wh\n\nill")


@pytest.mark.process
def test_a_server_stores_long_requests_when_it_is_asked_to(tmp_path, monkeypatch, cache_of_its_own):
    """They lie in files that `rm --caches` deletes; without --store there are none."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    body = {"prompt": "One small step for a man. " * 500, "max_tokens": 2}
    for arguments in ((), ("--store",)):
        with serving(tmp_path, "demo", "--context", "8192", "--threads", "1", *arguments) as running:
            tokens = running.http.post("/tokenize", json={"content": body["prompt"]}).json()["tokens"]
            assert running.http.post("/v1/completions", json=body, timeout=300).status_code == 200
            engine = running.engine_pid()
        until(lambda pid=engine: not lives(pid))  # the engine process stores the prompt cache at its end
        stored = [path.read_bytes() for path in (tmp_path / "cache" / "texts").glob("*.cache")]
        words = b"".join(token.to_bytes(4, "big") for token in tokens[:100])
        assert [words in each for each in stored] == [True] * len(arguments)
    assert main(["rm", "--caches"]) == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and words in path.read_bytes()]


@pytest.mark.process
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
    image = {"prompt_string": "a", "multimodal_data": ["x"]}
    assert http.post("/completion", json={**PROMPT, "prompt": image}).status_code == 400


def test_the_neutral_values_of_llama_server_ask_for_nothing(http):
    neutral = {"json_schema": {}, "grammar": "", "mirostat": 0, "typical_p": 1.0, "stop": []}
    assert http.post("/completion", json=PROMPT | neutral).json()["tokens_predicted"] == 6
    only = http.post("/completion", json=PROMPT | {"json_schema": {}, "n_predict": 100, "regex": ""}).json()
    json.loads(only["content"])


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/embeddings", "/embedding", "/v1/rerank", "/api/embed", "/api/embeddings"]
)
def test_embeddings_are_refused_with_the_reason(http, path):
    answer = http.post(path, json={"model": "demo", "input": "x"})
    option = "--rerank" if path.endswith("rerank") else "--embed"
    assert (answer.status_code, f"start the server with {option} MODEL" in answer.text) == (501, True)
    assert answer.headers["x-should-retry"] == "false", "clients would ask twice more"


@pytest.mark.process
def test_a_server_listens_on_several_addresses_and_lists_its_pair_by_an_alias(tmp_path):
    host = ("--host", "127.0.0.1,127.0.0.2", "--api-key", "k")
    with serving(tmp_path, "demo", *host, "--alias", "b,a") as running:
        port = running.url.rpartition(":")[2]
        for host in ("127.0.0.1", "127.0.0.2"):
            model = httpx.get(f"http://{host}:{port}/v1/models", headers={"x-api-key": "k"}).json()["data"][0]
            assert (model["id"], model["aliases"]) == ("a", ["a", "b"])


@pytest.mark.parametrize(
    "word", ["hello world ", "hello world " * 100]
)  # the second is never cut into tokens
@pytest.mark.parametrize(("path", "asked"), [("chat/completions", "messages"), ("completions", "prompt")])
def test_a_prompt_that_is_too_long_is_refused_with_both_sizes(http, path, asked, word):
    """Agents shorten a conversation by these numbers, or by these words."""
    text = word * 1500
    body = {asked: [{"role": "user", "content": text}] if asked == "messages" else text}
    error = http.post(f"/v1/{path}", json=body).json()["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 2048)
    assert error["n_prompt_tokens"] > 2048
    assert "exceeds the available context size" in error["message"]


@pytest.mark.parametrize(
    "asked",
    [
        {}, {"thinking": {"type": "enabled"}}, {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"}, {"think": False}, {"thinking": {"type": "disabled"}},
    ],
)  # fmt: skip
def test_models_think_in_every_interface_unless_a_request_says_otherwise(asked):
    body = Fields({"messages": MESSAGES, **asked})
    thinks = not asked or asked == {"thinking": {"type": "enabled"}}
    if "thinking" in asked:
        as_chat(body)
    read = openai_options(body)
    source = "{{ 'yes' if enable_thinking is defined and enable_thinking else 'no' }}"
    template = ChatTemplate(source, bos_text="", eos_text="")
    request = request_from({name: value for name, value in read.items() if name != "n"}, Sampling())
    text = template.render([Message("user", "Hi")], think=request.think, arguments=request.template_arguments)
    assert text == ("yes" if thinks else "no")
    if not asked:
        assert read["template_arguments"] == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("asked", "think"),
    [
        ({"thinking_budget_tokens": 16}, 16), ({"reasoning_budget_tokens": 0}, 0), ({"think": 16}, 16),
        ({"reasoning_budget_tokens": -1}, True), ({"thinking_token_budget": 16.0}, 16),
        ({"thinking_token_budget": 16, "think": True}, 16), ({"thinking_token_budget": 16, "think": False}, False),
        ({"reasoning_budget_tokens": 16, "reasoning_effort": "high"}, 16),
        ({"reasoning_budget_tokens": 16, "reasoning_effort": "none"}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025}, 1024),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1024),
        ({"thinking": {"type": "disabled"}, "max_tokens": 5}, False),
    ],
)  # fmt: skip
def test_every_interface_has_a_budget_for_thinking(asked, think):
    body = Fields({"messages": MESSAGES, "reasoning_budget_message": "Enough.", **asked})
    if "thinking" in asked:
        as_chat(body)
    read = openai_options(body)
    assert (repr(read["think"]), read["think_message"]) == (repr(think), "Enough.")
    assert body.unknown() == ["the field messages has no effect"]


@pytest.mark.parametrize("budget", [1023, 2048, "many"])
def test_anthropics_budget_is_at_least_1024_and_below_max_tokens(budget):
    body = Fields({"thinking": {"type": "enabled", "budget_tokens": budget}, "max_tokens": 2048})
    with pytest.raises(BadSetting, match="budget_tokens cannot be"):
        as_chat(body)


def test_a_setting_of_think_holds_where_a_request_has_none(monkeypatch):
    for setting in ("off", "16"):
        monkeypatch.setenv("LOCALSPEC_THINK", setting)
        assert openai_options(Fields({}))["template_arguments"] == {}


def test_a_prompt_is_counted_and_left_open(http):
    asked = {"messages": MESSAGES}
    tokens = http.post("/v1/messages/count_tokens", json={**asked, "max_tokens": 1}).json()
    counted = http.post("/v1/chat/completions/input_tokens", json=asked).json()
    assert counted["input_tokens"] == tokens["input_tokens"] > 5
    whole, left_open = (
        http.post("/apply-template", json={**asked, "add_generation_prompt": opens}).json()["prompt"]
        for opens in (True, False)
    )
    assert whole.startswith(left_open)
    assert len(whole) > len(left_open)


def test_a_reply_continues_one_message_and_begins_none_then(http):
    sentence = {"role": "assistant", "content": "Well"}
    both = {"add_generation_prompt": True, "continue_final_message": True}
    asked = {"messages": [*MESSAGES, sentence], **both}
    assert http.post("/v1/chat/completions", json=asked).status_code == 400
    rendered = http.post("/apply-template", json={"messages": [*MESSAGES, sentence, sentence]})
    assert rendered.json()["prompt"].endswith("Well")  # llama-server refuses two answers at the end
    assert http.post("/apply-template", json=asked).status_code == 400
    body = {"messages": [*MESSAGES, sentence], "add_generation_prompt": False, "continue_final_message": True}
    assert http.post("/apply-template", json=body).json()["prompt"].endswith("Well")


def test_an_answer_names_its_prompt_and_its_settings(http):
    tokens = http.post("/tokenize", json={"content": "def add(a, b):"}).json()["tokens"]
    for prompt in (PROMPT["prompt"], tokens):
        found = http.post("/completion", json=PROMPT | {"prompt": prompt, "seed": 5, "top_k": 7}).json()
        settings = found["generation_settings"]
        assert found["prompt"] == PROMPT["prompt"]
        assert [settings[n] for n in ("n_predict", "seed", "top_k", "temperature")] == [6, 5, 7, 0]
        assert (settings["logit_bias"], settings["ignore_eos"]) == ([], False)


def test_a_list_of_prompts_has_an_answer_for_each(http):
    prompts = [PROMPT["prompt"], "def multiply("]
    alone = [http.post("/completion", json=PROMPT | {"prompt": p}).json()["content"] for p in prompts]
    body = PROMPT | {"prompt": prompts}
    found = http.post("/completion", json=body).json()
    assert [(e["index"], e["prompt"], e["content"]) for e in found] == [
        (n, p, c) for n, (p, c) in enumerate(zip(prompts, alone, strict=True))
    ]
    lines = lines_of(http, "/completion", body | {"stream": True})
    assert ["".join(e["content"] for e in lines if e["index"] == n) for n in range(2)] == alone


def test_no_end_token_ends_a_reply_that_ignores_them(http):
    body = {"prompt": "def add(a, b):\n    return a + b\n", "n_predict": 200, "temperature": 1.5}
    for seed in range(3):
        found = http.post("/completion", json=body | {"ignore_eos": True, "seed": seed}).json()
        assert (found["stop_type"], found["tokens_predicted"]) == ("limit", 200)
    ends = {http.post("/completion", json=body | {"seed": n}).json()["stop_type"] for n in range(6)}
    assert "eos" in ends
    biases = found["generation_settings"]["logit_bias"]
    assert biases
    assert all(entry["bias"] is None for entry in biases)


def test_rates_leave_out_the_first_token_and_metrics_explain_themselves(http):
    one, several = (
        http.post("/completion", json=PROMPT | {"n_predict": n}).json()["timings"] for n in (1, 6)
    )
    assert one["predicted_per_second"] == one["predicted_per_token_ms"] == 0
    steps = several["predicted_n"] - 1
    assert several["predicted_per_second"] == pytest.approx(1000 / several["predicted_ms"] * steps)
    answered = http.get("/metrics")
    assert int(answered.headers["Process-Start-Time-Unix"]) > 0
    lines = answered.text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")
    assert float(values["llamacpp:tokens_predicted_total"]) >= 6
    assert float(values["localspec:replies_total"]) >= 1
    reported = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    assert reported == [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert {line.split("{")[0].split()[0] for line in lines if line[0] != "#"} == set(reported)


def test_passes_without_a_draft_are_no_drafts():
    totals = Totals()
    totals.add(Stats(cycles=5, emitted=5))
    totals.add(Stats(cycles=5, emitted=7, drafted=4, drafted_by_position=(3, 1), accepted_by_position=(2, 0)))
    text = exposition(totals, running=0, waiting=0, restarts=0)
    assert "llamacpp:spec_decode_num_drafts_total 3\n" in text
