"""llama.vim's requests, as its autoload/llama.vim sends them, to a model that has infill tokens."""

import pytest

from tests.gguf import vocabularies
from tests.gguf.models import Shape, write_gguf
from tests.serve.conftest import serving

pytestmark = pytest.mark.process

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
EXTRA = [{"filename": "b.py", "text": "def b():\n    return 2\n", "time": [0, 0]}]
USUAL = {"stream": False, "cache_prompt": True, "n_predict": 0, "samplers": [], "response_fields": [""]}
WARM_UP = USUAL | {
    "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": EXTRA, "prompt": "",
    "temperature": 0.0, "t_max_prompt_ms": 1, "t_max_predict_ms": 1,
}  # fmt: skip
FIELDS = [
    "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
    "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms",
    "timings/predicted_per_second", "truncated", "tokens_cached",
]  # fmt: skip
COMPLETION = USUAL | {
    "id_slot": 0, "input_prefix": "def a():\n", "input_suffix": "\n\nprint(a())\n", "input_extra": EXTRA,
    "prompt": "    ret", "n_predict": 12, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"], "t_max_prompt_ms": 500, "t_max_predict_ms": 250,
    "response_fields": FIELDS,
}  # fmt: skip
MESSAGES = [{"role": "system", "content": "You edit."}, {"role": "user", "content": "Do."}]
INSTRUCTION = USUAL | {"id_slot": 1, "messages": MESSAGES}


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabularies, "CONTROL", (*MARKS, *vocabularies.CONTROL))
        model = write_gguf(home / "Coder.gguf", Shape(context_length=512, name="coder"))
    with serving(home, "--target", str(model), "--context", "512") as running:
        yield running.http


def test_the_warm_up_reads_the_prompt_and_the_completion_reads_only_what_is_new(coder):
    warmed = coder.post("/infill", json=WARM_UP)
    assert (warmed.status_code, warmed.json()) == (200, {})
    found = coder.post("/infill", json=COMPLETION).json()
    assert found.keys() == set(FIELDS)
    assert found["content"]
    assert 0 < found["timings/predicted_n"] <= 12
    files = len(coder.post("/tokenize", json={"content": EXTRA[0]["text"]}).json()["tokens"])
    assert found["tokens_cached"] - found["timings/prompt_n"] - found["timings/predicted_n"] >= files - 1


def test_other_files_and_the_text_far_from_the_hole_are_left_out_where_they_do_not_fit(coder):
    long = COMPLETION | {
        "input_extra": [{"filename": f"{n}.py", "text": "value = 1\n" * 40} for n in range(16)],
        "input_prefix": "x = 1\n" * 400,
        "input_suffix": "y = 2\n" * 400,
        "response_fields": [],
    }
    found = coder.post("/infill", json=long).json()
    assert found["content"]
    assert 400 < found["tokens_evaluated"] < 512


def test_the_instruction_is_warmed_up_and_then_answered(coder):
    warmed = coder.post("/v1/chat/completions", json=INSTRUCTION).json()
    assert warmed["choices"][0]["message"]["content"] == ""
    asked = INSTRUCTION | {
        "min_p": 0.1,
        "temperature": 0.1,
        "samplers": ["min_p", "temperature"],
        "n_predict": 5,
    }
    answered = coder.post("/v1/chat/completions", json=asked).json()
    assert answered["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert answered["choices"][0]["message"]["content"]


def test_a_model_without_such_tokens_says_so_in_one_sentence(http):
    for body in (WARM_UP, COMPLETION):
        answer = http.post("/infill", json=body)
        assert answer.status_code == 501
        assert answer.json()["error"]["message"] == (
            "localspec demo target cannot fill in text (use a code model with fill-in-the-middle)"
        )


def test_a_suffix_is_filled_in_by_every_interface_that_has_one(coder):
    before, after = COMPLETION["input_prefix"], COMPLETION["input_suffix"]
    own = {"input_prefix": before, "input_suffix": after, "temperature": 0, "n_predict": 12}
    text = coder.post("/infill", json=own).json()["content"]
    body = {"prompt": before, "suffix": after, "temperature": 0, "max_tokens": 12}
    assert coder.post("/v1/completions", json=body).json()["choices"][0]["text"] == text
    plain = coder.post("/v1/completions", json=body | {"suffix": ""}).json()["usage"]["prompt_tokens"]
    filled = coder.post("/v1/completions", json=body | {"n": 1}).json()["usage"]["prompt_tokens"]
    assert filled > plain + 3
    ollama = {"prompt": before, "suffix": after, "stream": False}
    ollama["options"] = {"temperature": 0, "num_predict": 12}
    assert coder.post("/api/generate", json=ollama).json()["response"] == text
    assert "insert" in coder.post("/api/show", json={}).json()["capabilities"]


def test_a_suffix_needs_infill_tokens_and_a_prompt_that_is_text(coder, http):
    body = {"prompt": "a", "suffix": "b", "max_tokens": 1}
    assert http.post("/v1/completions", json=body).status_code == 501
    assert http.post("/api/generate", json=body | {"stream": False}).status_code == 501
    assert coder.post("/v1/completions", json=body | {"prompt": [1, 2]}).status_code == 400
    assert "insert" not in http.post("/api/show", json={}).json()["capabilities"]


def test_the_model_is_called_by_the_path_that_the_server_was_started_with(coder):
    name = coder.get("/v1/models").json()["data"][0]["id"]
    for model in (name, name.upper()):
        assert coder.post("/infill", json=WARM_UP | {"model": model}).status_code == 200
