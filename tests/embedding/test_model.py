"""Embeddings and scores of tiny models are those of llama.cpp's own server."""

import json

import numpy as np
import pytest

from localspec.embedding import model as embedding
from localspec.embedding.model import EmbeddingModel, place
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
    models = []

    def load(kind, **shape):
        file = ModelFile.at(tiny_gguf(**KINDS[kind] | shape))
        models.append(EmbeddingModel(file, "rank" if kind == "rank" else ""))
        return models[-1]

    yield load
    for model in models:
        model.close()


@pytest.mark.parametrize("kind", EMBEDDING)
def test_vectors_are_llama_servers_in_batches_and_one_by_one(opened, kind):
    model = opened(kind)
    together = model.embed(TEXTS).rows
    np.testing.assert_allclose(together, JUDGED[kind], **NEAR)
    np.testing.assert_allclose([model.embed([text]).rows[0] for text in TEXTS], JUDGED[kind], **NEAR)


def test_scores_are_llama_servers_in_batches_and_one_by_one(opened):
    model = opened("rank")
    np.testing.assert_allclose(model.rerank(QUERY, TEXTS).rows[:, 0], JUDGED["rank"], **NEAR)
    single = [model.rerank(QUERY, [text]).rows[0, 0] for text in TEXTS]
    np.testing.assert_allclose(single, JUDGED["rank"], **NEAR)


def test_after_a_failure_to_lengthen_the_context_short_texts_have_their_vectors(opened, monkeypatch):
    def fails(*given):
        raise NotEnoughMemory("no memory", hint="")

    monkeypatch.setattr(embedding, "_FIRST_TOKENS", 64)
    model = opened("last", context_length=128)
    short = model.embed([[7] * 8]).rows
    with monkeypatch.context() as failing:
        failing.setattr(embedding, "EmbeddingContext", fails)
        with pytest.raises(NotEnoughMemory):
            model.embed([[7] * 100])
    np.testing.assert_array_equal(model.embed([[7] * 8]).rows, short)
    assert model.embed([[7] * 100]).tokens == (100,)


@pytest.mark.parametrize("kind", EMBEDDING)
def test_a_text_of_every_length_has_the_same_vector_among_others(opened, kind):
    model, random = opened(kind), np.random.default_rng(1)
    texts = [random.integers(5, 250, length).tolist() for length in range(1, model.limit + 1)]
    together = model.embed(texts)
    assert together.tokens == tuple(range(1, model.limit + 1))
    for number in (0, 1, 30, model.limit - 1):
        np.testing.assert_allclose(model.embed([texts[number]]).rows[0], together.rows[number], **NEAR)
    with pytest.raises(ContextFull, match="text 3 of the input is too large: it has 65 tokens"):
        model.embed([texts[0], [*texts[-1], 7]], first=2)


def test_a_decoder_reads_a_long_text_in_pieces(opened, monkeypatch):
    model = opened("last", context_length=2048)
    text = np.random.default_rng(2).integers(5, 250, 700).tolist()
    in_pieces = model.embed([text]).rows
    assert model._context.length == 1024  # grown for the text, and read in passes of at most 512 tokens
    whole = EmbeddingModel(ModelFile.at(model._model.path), "last")
    whole._context.close()
    monkeypatch.setattr("localspec.llama.embedding._PIECE", 1024)
    whole._context = whole._fitting(10**3)
    whole._context.in_pieces = False
    np.testing.assert_allclose(whole.embed([text]).rows, in_pieces, **NEAR)
    whole.close()


def test_a_long_text_is_cut_before_its_last_special_token(opened):
    model, text = opened("mean"), "dog " * 100
    tokens = model._tokens(text)
    kept = [*tokens[:63], tokens[-1]]
    found = model.embed([text], truncate=True)
    assert found.tokens == (64,)
    np.testing.assert_array_equal(found.rows, model.embed([kept]).rows)


def test_texts_tokens_and_both_mixed_mean_the_same(opened):
    model = opened("cls")
    whole = model._tokens("the dog runs")
    mixed = ["the dog", *model._tokens("runs")[1:]]
    np.testing.assert_array_equal(model._tokens(whole), whole)
    assert model._tokens(mixed) == [*model._tokens("the dog"), *model._tokens("runs")[1:]]
    with pytest.raises(BadSetting, match="out of range"):
        model.embed([[300]])


def test_an_empty_text_is_named_where_the_model_adds_no_token(opened):
    assert opened("mean").embed([""]).tokens == (2,)
    with pytest.raises(BadSetting, match="text 1 of the input is empty"):
        opened("last").embed(["a", ""])


def test_no_texts_have_no_vectors(opened):
    assert opened("mean").embed([]).rows.shape == (0, 64)


def test_without_pooling_each_token_has_a_row_of_its_own_length(tiny_gguf):
    with EmbeddingModel(ModelFile.at(tiny_gguf(**KINDS["mean"])), "none") as model:
        found = model.embed(TEXTS[:2])
    assert (found.pooled, found.rows.shape) == (False, (sum(found.tokens), 64))
    mean = found.rows[: found.tokens[0]].mean(axis=0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), JUDGED["mean"][0], **NEAR)


def test_models_of_the_other_purpose_are_refused(tiny_gguf, opened):
    with pytest.raises(BadModelFile, match="scores no documents"):
        EmbeddingModel(ModelFile.at(tiny_gguf(**KINDS["mean"])), "rank")
    with pytest.raises(BadModelFile, match="is a reranker"):
        EmbeddingModel(ModelFile.at(tiny_gguf(**KINDS["rank"])))


def test_weights_go_to_the_gpu_in_use_only_where_memory_is_left():
    gpu = Device("CUDA0", "gpu", 0, 0, False, "", "CUDA")
    there = [Device("CUDA0", "gpu", 3 << 30, 0, False, "", "CUDA")]
    assert place(1 << 29, gpu, there) == ("CUDA0",)
    assert place(1 << 30, gpu, there) == place(1, None, there) == place(1, gpu, []) == ()
