"""Embeddings and scores of tiny models are those of llama.cpp's own server."""

import json

import numpy as np
import pytest

from localspec.embedding import model as embedding
from localspec.embedding.model import EmbeddingModel, normalised, place
from localspec.errors import BadModelFile, BadSetting, ContextFull, NotEnoughMemory
from localspec.machine.devices import Device
from localspec.models.local_models import ModelFile
from tests.embedding.judge import KINDS, QUERY, RECORDED, TEXTS

NEAR = {"rtol": 0, "atol": 1e-4}
JUDGED = json.loads(RECORDED.read_text())
EMBEDDING = [kind for kind in KINDS if kind != "rank"]


@pytest.fixture
def opened(tiny_gguf):
    """opened("mean") is a loaded model of that kind."""

    def load(kind, pooling="", **shape):
        file = ModelFile.at(tiny_gguf(**KINDS[kind] | shape))
        return EmbeddingModel(file, pooling or "rank" * (kind == "rank"))

    return load


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_llama_servers_in_batches_and_one_by_one(kind, opened):
    model, query = opened(kind), QUERY if kind == "rank" else None
    expected = np.reshape(JUDGED[kind], (len(TEXTS), -1))
    np.testing.assert_allclose(model.read(TEXTS, query).rows, expected, **NEAR)
    single = [model.read([text], query).rows[0] for text in TEXTS]
    np.testing.assert_allclose(single, expected, **NEAR)


@pytest.mark.parametrize("kind", EMBEDDING)
@pytest.mark.parametrize("length", [16, 63])
def test_a_model_of_a_short_context_reads_many_texts(kind, length, opened):
    """llama.cpp aborts if a context has fewer tokens than sequences."""
    model = opened(kind, context_length=length)
    texts = [[7 + n] for n in range(100)] + [[7] * length]
    together = model.read(texts).rows
    np.testing.assert_allclose(model.read(texts[-2:]).rows, together[-2:], **NEAR)


def test_after_a_failure_to_lengthen_the_context_short_texts_have_their_vectors(opened, monkeypatch):
    def fails(*given):
        raise NotEnoughMemory("no memory", hint="")

    monkeypatch.setattr(embedding, "_FIRST_TOKENS", 64)
    model = opened("last", context_length=128)
    short = model.read([[7] * 8]).rows
    with monkeypatch.context() as failing:
        failing.setattr(embedding, "EmbeddingContext", fails)
        with pytest.raises(NotEnoughMemory):
            model.read([[7] * 100])
    np.testing.assert_array_equal(model.read([[7] * 8]).rows, short)
    assert model.read([[7] * 100]).tokens == (100,)


@pytest.mark.parametrize("kind", EMBEDDING)
def test_a_text_of_every_length_has_the_same_vector_among_others(kind, opened):
    model, random = opened(kind), np.random.default_rng(1)
    texts = [random.integers(5, 250, length).tolist() for length in range(1, model.limit + 1)]
    together = model.read(texts)
    assert together.tokens == tuple(range(1, model.limit + 1))
    for number in (0, 1, 30, model.limit - 1):
        np.testing.assert_allclose(model.read([texts[number]]).rows[0], together.rows[number], **NEAR)
    with pytest.raises(ContextFull, match="text 3 of the input is too large: it has 65 tokens"):
        model.read([texts[0], [*texts[-1], 7]], first=2)


def test_a_decoder_reads_a_long_text_in_pieces(opened, monkeypatch):
    model, whole = (opened("last", context_length=2048) for _ in range(2))
    text = np.random.default_rng(2).integers(5, 250, 700).tolist()
    in_pieces = model.read([text]).rows
    assert model._context.length == 1024  # grown for the text, and read in passes of at most 512 tokens
    whole._context.close()
    monkeypatch.setattr("localspec.llama.embedding._PIECE", 1024)
    whole._context = whole._fitting(10**3)
    whole._context.in_pieces = False
    np.testing.assert_allclose(whole.read([text]).rows, in_pieces, **NEAR)


def test_a_long_text_is_cut_before_its_last_special_token(opened):
    model, text = opened("mean"), "dog " * 100
    tokens = model._tokens(text)
    found = model.read([text], truncate=True)
    assert found.tokens == (64,)
    np.testing.assert_array_equal(found.rows, model.read([[*tokens[:63], tokens[-1]]]).rows)


def test_texts_tokens_and_both_mixed_mean_the_same(opened):
    model = opened("cls")
    whole = model._tokens("the dog runs")
    mixed = ["the dog", *model._tokens("runs")[1:]]
    np.testing.assert_array_equal(model._tokens(whole), whole)
    assert model._tokens(mixed) == [*model._tokens("the dog"), *model._tokens("runs")[1:]]
    with pytest.raises(BadSetting, match="out of range"):
        model.read([[300]])


def test_an_empty_text_is_named_where_the_model_adds_no_token_and_no_texts_have_no_vectors(opened):
    model = opened("mean")
    assert (model.read([""]).tokens, model.read([]).rows.shape) == ((2,), (0, 64))
    with pytest.raises(BadSetting, match="text 1 of the input is empty"):
        opened("last").read(["a", ""])


def test_without_pooling_each_token_has_a_row_of_its_own_length(opened):
    rows, tokens = opened("mean", "none").read(TEXTS[:2])
    assert len(rows) == sum(tokens)
    mean = rows[: tokens[0]].mean(axis=0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), JUDGED["mean"][0], **NEAR)


@pytest.mark.parametrize(
    ("kind", "pooling", "why"),
    [
        ("mean", "rank", "cannot score documents"),
        ("rank", "", "is a reranker"),
        ("last", "", "does not say how it makes one vector of a text"),
    ],
)
def test_models_of_another_purpose_are_refused_by_their_headers(kind, pooling, why, tiny_gguf):
    path = tiny_gguf(**KINDS[kind] | ({"pooling": ""} if kind == "last" else {}))
    with pytest.raises(BadModelFile, match=why):
        EmbeddingModel(ModelFile.at(path), pooling)


def test_weights_go_to_the_gpu_in_use_only_where_memory_is_left():
    gpu = Device("CUDA0", "gpu", 0, 0, False, "", "CUDA")
    there = [Device("CUDA0", "gpu", 3 << 30, 0, False, "", "CUDA")]
    assert place(1 << 29, gpu, there) == ("CUDA0",)
    assert place(1 << 30, gpu, there) == place(1, None, there) == place(1, gpu, []) == ()


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (2, [0.6, -0.8]),
        (1, [3 / 7, -4 / 7]),
        (0, [24570, -32760]),
        (-1, [3, -4]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
    ],
)
def test_norms_are_llama_servers_and_zeros_stay(norm, expected):
    found = normalised(np.array([[3, -4], [0, 0]], np.float32), norm)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [expected, [0, 0]], rtol=1e-6)


def test_vectors_are_shortened_to_no_more_than_they_have(opened):
    model = opened("mean")
    short = model.read(TEXTS[:1], dimensions=8).rows[0]
    first = np.array(JUDGED["mean"][0][:8])
    np.testing.assert_allclose(short, first / np.linalg.norm(first), rtol=0, atol=3e-4)
    for wrong in (0, 65, -1):
        with pytest.raises(BadSetting, match=f"dimensions cannot be {wrong}"):
            model.read(TEXTS, dimensions=wrong)
