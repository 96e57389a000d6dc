"""Several texts in one cache, a token of each in every batch, at almost the price of one text."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.errors import BadModelFile
from localspec.health.stopping import Closing, Held
from localspec.llama.failures import context_failure, decode_failure
from localspec.llama.library import forget_log_errors, last_log_errors, lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows
from localspec.llama.threads import thread_count


class Several(Closing):
    """A context for texts that are all written to at once; every text is one sequence of llama.cpp."""

    def __init__(self, model: Model, texts: int, length: int, threads: int | None = None) -> None:
        """Room for `texts` texts of `length` tokens. Raises BadModelFile, NotEnoughMemory, BackendFailure."""
        if not (model.generates_text and model.can_roll_back):
            raise BadModelFile(
                f"{model.name} cannot write several texts at once",
                hint="use a model without recurrent layers",
            )
        params = lib.llama_context_default_params()
        params.n_ctx = texts * length
        params.n_seq_max = texts
        params.n_batch = params.n_ubatch = length
        params.n_threads = params.n_threads_batch = thread_count(threads)
        params.no_perf = True
        forget_log_errors()
        with Held():
            self._pointer: Any = lib.llama_init_from_model(model.pointer, params)
        if not self._pointer:
            raise context_failure(model.name, texts * length, last_log_errors())
        self._memory = lib.llama_get_memory(self._pointer)
        self._batch = lib.llama_batch_init(length, 0, 1)
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

    def close(self) -> None:
        """Free the cache; idempotent."""
        if self._pointer:
            lib.llama_batch_free(self._batch)
            lib.llama_free(self._pointer)
            self._pointer = None

    def _fill(self, tokens: Sequence[tuple[int, int]], *, last_only: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (text, token) in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self._lengths[text]
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, ctypes.c_int32(text)
            batch.logits[i] = not last_only or i + 1 == len(tokens)
            self._lengths[text] += 1

    def _decoded(self, rows: int) -> tuple[np.ndarray, ...]:
        forget_log_errors()
        if code := lib.llama_decode(self._pointer, self._batch):
            raise decode_failure(code, last_log_errors())
        lib.llama_synchronize(self._pointer)
        return self._rows.read(self._pointer, rows)
