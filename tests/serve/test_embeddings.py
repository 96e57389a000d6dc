"""Embeddings and reranking beside the pair, over every interface, are those of llama.cpp's server."""

import base64
import json
import threading

import httpx
import numpy as np
import pytest

from tests.embedding.judge import KINDS, QUERY, TEXTS
from tests.embedding.test_model import JUDGED, NEAR
from tests.serve.conftest import serving

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_gguf):
    """A server whose models are called by their files: `embed` and `rerank`."""
    folder = tmp_path_factory.mktemp("small")
    models = ("--embed", "mean"), ("--rerank", "rank")
    for option, kind in models:
        folder.joinpath(f"{option[2:]}.gguf").write_bytes(tiny_gguf(**KINDS[kind]).read_bytes())
    given = [word for option, _ in models for word in (option, str(folder / f"{option[2:]}.gguf"))]
    with serving(folder / "home", "demo", *given) as found:
        yield found


@pytest.fixture(scope="module")
def http(server):
    return server.http


def post(http, path, **body):
    found = http.post(path, json=body)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize("texts", [TEXTS * 20, TEXTS, TEXTS[:1]], ids=["many", "some", "one"])
def test_vectors_of_every_interface(http, texts):
    expected = JUDGED["mean"][: len(TEXTS)] * max(len(texts) // len(TEXTS), 1)
    expected = expected[: len(texts)]
    found = post(http, "/v1/embeddings", input=texts, model="embed")
    assert [each["index"] for each in found["data"]] == [*range(len(texts))]
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0
    np.testing.assert_allclose([each["embedding"] for each in found["data"]], expected, **NEAR)
    plain = post(http, "/embedding", content=texts)
    np.testing.assert_allclose([each["embedding"][0] for each in plain], expected, **NEAR)
    of_ollama = post(http, "/api/embed", input=texts, model="embed:latest")
    np.testing.assert_allclose(of_ollama["embeddings"], expected, **NEAR)
    (one,) = [post(http, "/api/embeddings", prompt=text, model="embed")["embedding"] for text in texts[:1]]
    np.testing.assert_allclose(one / np.linalg.norm(one), expected[0], **NEAR)
    whole = post(http, "/v1/embeddings", input=texts, encoding_format="base64", dimensions=16)["data"]
    rows = np.array([np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in whole])
    short = np.array(expected)[:, :16]
    np.testing.assert_allclose(rows, short / np.linalg.norm(short, axis=1, keepdims=True), rtol=0, atol=3e-4)


def test_scores_of_every_path_best_first(http):
    best = np.argsort(JUDGED["rank"])[::-1].tolist()
    for path in ("/v1/rerank", "/rerank", "/reranking"):
        found = post(http, path, query=QUERY, documents=TEXTS)["results"]
        assert [each["index"] for each in found] == best
        np.testing.assert_allclose(
            [each["relevance_score"] for each in found], np.sort(JUDGED["rank"])[::-1], **NEAR
        )
    top = post(http, "/v1/rerank", query=QUERY, documents=TEXTS, top_n=2, return_documents=True)["results"]
    assert [each["document"]["text"] for each in top] == [TEXTS[index] for index in best[:2]]
    tei = post(http, "/rerank", query=QUERY, texts=TEXTS, return_text=True)
    assert [each["text"] for each in tei] == [TEXTS[index] for index in best]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/embeddings", {"input": ["a"] * 70 + ["dog " * 100]}, 400, "text 70 of the input is too large"),
        ("/v1/embeddings", {"input": []}, 400, "input"),
        ("/v1/embeddings", {"input": {"content": "a"}}, 400, "input"),
        ("/v1/embeddings", {"input": {"content": [{"type": "image_url"}]}}, 400, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 65}, 400, "dimensions"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "model": "demo"}, 404, "use 'embed'"),
        ("/v1/rerank", {"query": "a", "documents": [1, 2]}, 400, "documents"),
        ("/v1/rerank", {"query": "a", "documents": []}, 400, "documents"),
        ("/v1/rerank", {"documents": ["a"]}, 400, "query"),
    ],
)
def test_a_mistake_gets_one_sentence(http, path, body, status, text):
    found = http.post(path, json=body)
    assert (found.status_code, text in found.json()["error"]["message"]) == (status, True), found.text


def test_long_texts_are_cut_for_ollama_and_lists_name_the_capability(http):
    assert post(http, "/api/embed", input="dog " * 100, model="embed")["prompt_eval_count"] == 64
    refused = http.post("/api/embed", json={"input": "dog " * 100, "model": "embed", "truncate": False})
    assert refused.status_code == 400
    listed = {each["id"]: each.get("capabilities") for each in http.get("/v1/models").json()["data"]}
    assert (listed["embed"], listed["rerank"]) == (["embedding"], ["rerank"])
    assert http.get("/v1/models/embed").json()["id"] == "embed"
    tags = {each["name"]: each.get("capabilities") for each in http.get("/api/tags").json()["models"]}
    assert tags["embed"] == post(http, "/api/show", model="embed")["capabilities"] == ["embedding"]


def test_small_models_in_memory_are_listed_until_they_are_freed(http):
    def loaded():
        return {each["name"]: each["expires_at"] for each in http.get("/api/ps").json()["models"]}

    post(http, "/v1/rerank", query=QUERY, documents=TEXTS)
    post(http, "/api/embed", input=TEXTS, model="embed", keep_alive="90s")
    (pair, never), (_, soon), _ = loaded().items()
    assert (pair, never[:4], soon < never) == ("demo", "2318", True)
    states = {each["id"]: each["status"]["value"] for each in http.get("/v1/models").json()["data"]}
    assert (states["embed"], states["rerank"]) == ("loaded", "loaded")
    post(http, "/api/embed", input=[], model="embed", keep_alive=0)
    assert loaded() == {"demo": never, "rerank": never}
    again = post(http, "/api/embed", input=TEXTS, model="embed")["embeddings"]
    np.testing.assert_allclose(again, JUDGED["mean"], **NEAR)
    assert loaded()["embed"] == never
    refused = http.post("/api/embed", json={"input": "a", "model": "embed", "keep_alive": "soon"})
    assert (refused.status_code, "keep_alive cannot be" in refused.text) == (400, True)


def test_a_reply_and_vectors_at_the_same_time_are_what_they_are_alone(http, server):
    prompt = {"prompt": "One", "max_tokens": 200, "temperature": 0}
    alone, found = post(http, "/v1/completions", **prompt)["choices"][0]["text"], []

    def index():
        with httpx.Client(base_url=server.url, timeout=300) as own:
            found.extend(post(own, "/v1/embeddings", input=TEXTS * 10)["data"])

    indexing = threading.Thread(target=index)
    indexing.start()
    assert post(http, "/v1/completions", **prompt)["choices"][0]["text"] == alone
    indexing.join()
    np.testing.assert_allclose([each["embedding"] for each in found], JUDGED["mean"] * 10, **NEAR)


def test_a_crash_of_the_engine_is_over_at_the_next_request(server):
    import os
    import signal

    os.kill(server.engine_pid(), signal.SIGKILL)
    for _ in range(2):
        found = server.http.post("/v1/embeddings", json={"input": TEXTS})
    np.testing.assert_allclose([each["embedding"] for each in found.json()["data"]], JUDGED["mean"], **NEAR)


def test_clients_of_openai_and_ollama(server):
    import ollama
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="embed", input=TEXTS)  # asks for base64
    np.testing.assert_allclose([each.embedding for each in found.data], JUDGED["mean"], **NEAR)
    client = ollama.Client(server.url)
    np.testing.assert_allclose(client.embed("embed", TEXTS)["embeddings"], JUDGED["mean"], **NEAR)
    assert "embedding" in client.show("embed").capabilities
    assert json.loads(json.dumps(client.embeddings("embed", TEXTS[0])["embedding"]))
