"""`localspec.embed` and `localspec.rerank`."""

import weakref

import numpy as np
import pytest

import localspec
from localspec.embedding import model as embedding
from localspec.errors import BadSetting
from tests.embedding.judge import KINDS, QUERY, TEXTS
from tests.embedding.test_model import JUDGED, NEAR


@pytest.fixture(autouse=True)
def at_home(home):
    yield
    localspec.unload()


def test_vectors_and_scores_in_python_and_one_model_in_memory(tiny_gguf, monkeypatch):
    path = tiny_gguf(**KINDS["mean"])
    found = localspec.embed(TEXTS, model=path)
    assert (found.dtype, found.shape) == (np.float32, (len(TEXTS), 64))
    np.testing.assert_allclose(found, JUDGED["mean"], **NEAR)
    (kept,) = map(weakref.ref, embedding._kept.values())
    short = localspec.embed(TEXTS[0], model=path, dimensions=8)
    np.testing.assert_allclose(np.linalg.norm(short), 1, rtol=1e-6)
    context, model = map(weakref.ref, (kept()._context, kept()._model))
    monkeypatch.setenv("LOCALSPEC_RERANK", str(tiny_gguf(**KINDS["rank"])))
    np.testing.assert_allclose(localspec.rerank(QUERY, TEXTS), JUDGED["rank"], **NEAR)
    assert (kept(), context(), model()) == (None, None, None)


def test_a_call_without_a_model_names_the_setting():
    with pytest.raises(BadSetting) as raised:
        localspec.embed("text")
    assert "`embed`" in raised.value.hint
