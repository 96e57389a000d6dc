"""Several texts in one cache, a token of each in every batch, at almost the price of one text."""

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np

from localspec.errors import BadModelFile
from localspec.llama.cache import Cache, params_of
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows


class Several(Cache):
    """A context for texts that are all written to at once; every text is one sequence of llama.cpp."""

    def __init__(self, model: Model, texts: int, length: int, threads: int | None = None) -> None:
        """Room for `texts` texts of `length` tokens. Raises BadModelFile, NotEnoughMemory, BackendFailure."""
        if not (model.generates_text and model.can_roll_back):
            raise BadModelFile(
                f"{model.name} cannot write several texts at once",
                hint="use a model without recurrent layers",
            )
        params = params_of(model, texts * length, threads)
        params.n_seq_max, params.swa_full = texts, True
        params.n_batch = params.n_ubatch = length
        super().__init__(model, params)
        self._batch = lib.llama_batch_init(length, 0, 1)
        weakref.finalize(self, lib.llama_batch_free, self._batch)
        self._lengths = [0] * texts
        self._rows = FullRows(model.vocab.size, model.vocab.size)

    def begin(self, text: int, tokens: Sequence[int]) -> np.ndarray:
        """Replace a text; returns the row after it, valid until the next decode."""
        lib.llama_memory_seq_rm(self._memory, text, -1, -1)
        self._lengths[text] = 0
        self._fill([(text, token) for token in tokens], last_only=True)
        return self._decoded(1)[0]

    def append(self, tokens: Sequence[tuple[int, int]]) -> tuple[np.ndarray, ...]:
        """One more token for each of these (text, token), and the row after each."""
        self._fill(tokens, last_only=False)
        return self._decoded(len(tokens))

    def _fill(self, tokens: Sequence[tuple[int, int]], *, last_only: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (text, token) in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self._lengths[text]
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, ctypes.c_int32(text)
            batch.logits[i] = not last_only or i + 1 == len(tokens)
            self._lengths[text] += 1

    def _decoded(self, rows: int) -> tuple[np.ndarray, ...]:
        self.run(lib.llama_decode, self._batch, self._batch.n_tokens)
        return self._rows.read(self.handle, rows)
