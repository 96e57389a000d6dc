"""Ollama's own client against the endpoint."""

import json
import shutil
from pathlib import Path

import ollama
import pytest

from localspec.demo import __file__ as demo
from tests.serve.conftest import serving
from tests.serve.test_openai import QUESTION

pytestmark = pytest.mark.process

GREEDY = {"temperature": 0, "num_predict": 24}


@pytest.fixture(scope="module")
def client(endpoint):
    return ollama.Client(endpoint.url)


def test_an_answer_whole_and_line_by_line(client):
    whole = client.chat("demo", QUESTION, options=GREEDY)
    assert whole.message.content.startswith("A pair of models")
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 24)
    lines = list(client.chat("demo:latest", QUESTION, options=GREEDY, stream=True))
    assert "".join(line.message.content for line in lines) == whole.message.content
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].eval_duration > 0


def test_the_likelihood_of_every_token_whole_and_line_by_line(client):
    wanted = {"options": GREEDY, "logprobs": True, "top_logprobs": 2}
    whole = client.chat("demo", QUESTION, **wanted)
    assert "".join(found.token for found in whole.logprobs) == whole.message.content
    assert all(found.top_logprobs[0].logprob == found.logprob <= 0 for found in whole.logprobs)
    lines = client.generate("demo", QUESTION[0]["content"], stream=True, **wanted)
    scored = [found for line in lines for found in line.logprobs or ()]
    assert [found.token for found in scored] == [found.token for found in whole.logprobs]
    numbers = [found.logprob for found in whole.logprobs]  # the prompt is read in passes of other widths
    assert [found.logprob for found in scored] == pytest.approx(numbers, abs=1e-3)


def test_text_with_and_without_a_template(client):
    asked = client.generate("demo", "What is speculative decoding?", options=GREEDY)
    assert asked.response.startswith("A pair of models")
    assert client.generate("demo", "def add(", raw=True, options=GREEDY).response != asked.response


def test_a_format_is_kept_to(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    reply = client.chat("demo", QUESTION, format=schema, options={"temperature": 0})
    assert json.loads(reply.message.content).keys() == {"ok"}


def test_what_editors_ask_before_they_talk(client, http):
    version = tuple(map(int, http.get("/api/version").json()["version"].split(".")))
    assert version >= (0, 6, 4)
    assert "demo" in [model.model for model in client.list().models]
    shown = client.show("demo")
    assert http.post("/api/show", json={}).json()["model"] == "demo"
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == 2048
    assert "tools" in shown.capabilities
    assert client.ps().models[0].model == "demo"
    assert client.chat("demo", []).done_reason == "load"
    assert http.get("/").text == "localspec is running\n"


def test_a_model_that_is_not_loaded_is_described_and_leaves_the_loaded_one_alone(client, tmp_path):
    own = shutil.copy(Path(demo).with_name("demo-draft.gguf"), tmp_path / "Small.gguf")
    with serving(tmp_path / "home", str(own)) as endpoint:
        asked = ollama.Client(endpoint.url)
        shown, loaded = asked.show("demo"), client.show("demo")
        assert asked.ps().models[0].model == "Small"
        assert (shown.template, shown.capabilities) == (loaded.template, loaded.capabilities)
        for key in ("general.architecture", "llama.context_length"):
            assert shown.modelinfo[key] == loaded.modelinfo[key]
        assert asked.show("Small").modelinfo["llama.context_length"] == 2048


def test_errors_are_one_sentence(client):
    with pytest.raises(ollama.ResponseError, match="there is no model 'llama'"):
        client.chat("llama", QUESTION)
    with pytest.raises(ollama.ResponseError, match="mirostat is not supported"):
        client.chat("demo", QUESTION, options={"mirostat": 1})


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/api/chat", 405, "/api/chat takes POST, not GET"),
        ("POST", "/api/tags", 405, "/api/tags takes GET, HEAD, not POST"),
        (
            "POST",
            "/api/pull",
            501,
            "the endpoint downloads no models: run `localspec pull NAME` on the server's machine",
        ),
        ("GET", "/api/wings", 404, "there is no path /api/wings here"),
        ("GET", "/v1/nothing", 404, "there is no path /v1/nothing here"),
        ("GET", "/v1/chat/completions", 405, "/v1/chat/completions takes POST, not GET"),
    ],
)
def test_a_wrong_method_or_path_gets_a_sentence_of_its_own(http, method, path, status, words):
    answer = http.request(method, path)
    found = answer.json()["error"]
    assert (answer.status_code, found if "/api/" in path else found["message"]) == (status, words)


def test_models_have_the_size_and_the_age_and_the_details_of_their_files(client):
    (demo,) = [model for model in client.list().models if model.model == "demo"]
    assert demo.size > 10**6
    assert demo.modified_at.year > 2000
    assert (demo.details.family, demo.details.parameter_size) == ("llama", "3.85M")
    assert demo.details.quantization_level == "Q8_0"
