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

_kept: dict[object, EmbeddingModel] = {}  # the loaded model, by the arguments that named it
_loading = threading.Lock()


@after_fork
def _forget() -> None:
    global _loading
    _loading = threading.Lock()
    unload()


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
    `embed`. pooling: mean, cls or last, by default as the file says; none: one row for each token, not normalised.
    dimensions: numbers in a row. truncate: cut texts that are too long. pull: download missing files. The model stays
    loaded until a call names another one or `unload()` is called. Raises LocalspecError.
    """
    given = [texts] if isinstance(texts, str) else texts
    return _loaded("embed", model, pooling, pull).read(given, dimensions=dimensions, truncate=truncate).rows


def rerank(
    query: str, documents: Iterable[str], *, model: str | Path | None = None, pull: bool = False
) -> np.ndarray:
    """Return a score for each document, float32 [documents]; the best answer to the query has the highest one.

    model: a reranker, named as in `embed`; by default the setting `rerank`. Raises LocalspecError.
    """
    return _loaded("rerank", model, "rank", pull).read(documents, query).rows[:, 0]


unload = _kept.clear  # a running call keeps its model until it ends


def _loaded(setting: str, model: str | Path | None, pooling: str, pull: bool) -> EmbeddingModel:
    with _loading:
        key = setting, model, pooling
        if key not in _kept:
            settings = configured()
            if not (wanted := model or settings.get(setting)):
                raise BadSetting("no model is given", hint=f"name one, or set `{setting}` in config.toml")
            file = find(wanted, draft=LOOKUP, pull=pull).target
            unload()
            if gpu := default_gpu():
                ensure_gpu(gpu.name, gpu.description, "auto", "f16", bool)
            _kept[key] = EmbeddingModel(file, pooling, settings.get("threads"), gpu)
        return _kept[key]
