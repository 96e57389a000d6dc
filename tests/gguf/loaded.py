"""A GGUF's vocabulary in llama.cpp, without its weights: files that have none can be opened so."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec.llama.library import lib
from localspec.llama.vocab import Vocab


@contextmanager
def vocabulary_of(path: Path) -> Iterator[Vocab]:
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    assert model, f"llama.cpp cannot open {path}"
    try:
        yield Vocab(lib.llama_model_get_vocab(model))
    finally:
        lib.llama_model_free(model)
