"""`localspec.embed` and `localspec.rerank`, which keep the latest model loaded."""

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from localspec.embedding.model import EmbeddingModel, Text
from localspec.errors import BadSetting
from localspec.files import after_fork
from localspec.llama.check import ensure_gpu
from localspec.llama.devices import default_gpu
from localspec.models.names import LOOKUP, find
from localspec.options import configured

_kept: tuple[object, EmbeddingModel] | None = None  # the loaded model, with the arguments that named it
_loading = threading.RLock()


@after_fork
def _forget() -> None:
    global _kept, _loading
    _kept, _loading = None, threading.RLock()


def embed(
    texts: Iterable[Text],
    *,
    model: str | Path | None = None,
    pooling: str = "",
    dimensions: int | None = None,
    truncate: bool = False,
    pull: bool = False,
) -> np.ndarray:
    """Return the vectors of texts, float32 [texts, width], each of length 1.

    texts: texts, or lists of token ids. model: a name, a GGUF file or a model on Hugging Face; by default the setting
    `embed`. pooling: mean, cls or last, by default as the file says; none: a row for each token, as it is.
    dimensions: numbers in a row. truncate: cut texts that are too long. pull: download missing files. The model stays
    loaded until a call names another one or `unload()` is called. Raises LocalspecError.
    """
    with _loading:  # held to the end, because another model frees this one
        loaded = _loaded("embed", model, pooling, pull)
        given = [texts] if isinstance(texts, str) else texts
        return loaded.embed(given, dimensions=dimensions, truncate=truncate).rows


def rerank(
    query: str, documents: Iterable[str], *, model: str | Path | None = None, pull: bool = False
) -> np.ndarray:
    """Return a score for each document, float32 [documents]; the best answer to the query has the highest one.

    model: a reranker, named as in `embed`; by default the setting `rerank`. Raises LocalspecError.
    """
    with _loading:
        return _loaded("rerank", model, "rank", pull).rerank(query, documents).rows[:, 0]


def unload() -> None:
    """Free the model that `embed` and `rerank` keep loaded."""
    global _kept
    with _loading:
        held, _kept = _kept, None
        if held:
            held[1].close()


def _loaded(setting: str, model: str | Path | None, pooling: str, pull: bool) -> EmbeddingModel:
    global _kept
    key = setting, model, pooling
    if _kept is None or _kept[0] != key:
        settings = configured()
        if not (wanted := model or settings.get(setting)):
            raise BadSetting("no model is named", hint=f"name one, or set `{setting}` in config.toml")
        file = find(wanted, draft=LOOKUP, pull=pull).target
        unload()
        gpu, threads = default_gpu(), settings.get("threads")
        if gpu:
            ensure_gpu(gpu.name, gpu.description, "auto", "f16", bool)
        _kept = key, EmbeddingModel(file, pooling, threads, gpu)
    return _kept[1]
