"""A prediction head's cache and the decoding on it: batches of tokens, each with a hidden row."""

import weakref
from collections.abc import Callable, Sequence
from time import perf_counter, process_time
from types import TracebackType
from typing import Any, Self

import numpy as np

from localspec.llama.batch import Batch
from localspec.llama.contention import Threads
from localspec.llama.context import Context, make_room, new_context, params_of
from localspec.llama.failures import decode_failure
from localspec.llama.hidden import get_output, rows_at, set_output
from localspec.llama.library import forget_log_errors, last_log_errors, lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows
from localspec.llama.threads import thread_count
from localspec.llama.watch import Pace, waiting_for

CHUNK = 32  # rows in one call into llama.cpp, which plans logits for as many


class HeadContext:
    """The cache of a head: not for two threads at once, nor while its target decodes."""

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        encodes: bool,
        length: int,
        threads: int | None = None,
        kv_type_k: str = "f16",
        kv_type_v: str = "f16",
        flash_attn: str = "auto",
    ) -> None:
        """Room for `length` rows; raises BadSetting, NotEnoughMemory or BackendFailure.

        model: the head's file, or the target's own model with a head inside.
        encodes: whether hidden rows pass an encoder first (EAGLE-3); otherwise the head is a layer of prediction
            layers (MTP) and takes them as they are.
        """
        params = params_of(length, lib.llama_model_n_swa(model.pointer), kv_type_k, kv_type_v, flash_attn)
        make_room(params, CHUNK, CHUNK)
        params.n_threads = params.n_threads_batch = thread_count(threads)
        params.ctx_other = target.handle
        if not encodes:
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        pointer = new_context(model, params, length)
        set_output(pointer, True, True)
        self.model = model
        self.busy_seconds = 0.0  # inside llama.cpp, until its results were there
        self.capacity: int = lib.llama_n_ctx(pointer)
        self.threads = Threads(params.n_threads)
        self._width: int = lib.llama_model_n_embd_out(model.pointer)
        self._context: Any = pointer
        self._memory: Any = lib.llama_get_memory(pointer)
        chunk: int = lib.llama_n_batch(pointer)
        self._batch = Batch(chunk, columns=self._width)
        self._features = Batch(chunk, columns=_encoder_columns(model), tokens=False) if encodes else None
        self._chunk = chunk
        self._pace = Pace() if model.remote else None
        shared = min(model.vocab.size, target.model.vocab.size)
        self._rows = FullRows(model.vocab.size, shared)
        self._last_token = model.vocab.size - 1
        # The finalizer holds the models and the target's context, so that garbage collection cannot free them first.
        self._finalizer = weakref.finalize(self, _free, pointer, model, target)
        model.adopt(self)

    @property
    def columns(self) -> int:
        """Of a feature."""
        return self._width

    @property
    def most_rows(self) -> int:
        """That one call can decode with their logits."""
        return self._chunk

    def features(self, hidden: np.ndarray) -> np.ndarray:
        """What the head reads of hidden rows [rows, columns] of the target: float32 [rows, self.columns]."""
        if self._features is None:
            return np.array(hidden, dtype=np.float32)
        found = []
        for begin in range(0, len(hidden), self._chunk):
            part = hidden[begin : begin + self._chunk]
            # The encoder looks at no positions, but llama.cpp refuses those that do not follow the cache's.
            position = lib.llama_memory_seq_pos_max(self._memory, 0) + 1
            batch = self._features.fill((), position, rows=len(part), embeddings=part)
            self._run(lib.llama_encode, batch, len(part))
            found.append(np.array(rows_at(get_output(self._pointer), len(part), self._width)))
        return np.concatenate(found)

    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None:
        """Append rows to the cache, for no logits."""
        for begin in range(0, len(tokens), self._chunk):
            end = begin + self._chunk
            self._decode(tokens[begin:end], features[begin:end], position + begin, rows=False)

    def predict(
        self, tokens: Sequence[int], features: np.ndarray, position: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append at most `most_rows` rows; the logits after the last, valid until the next call, and its feature."""
        count = len(tokens)
        # The graphs of heads compute all rows, so a batch with output flags for some of them reads the wrong ones.
        self._decode(tokens, features, position, rows=True)
        row = self._rows.read(self._pointer, count)[-1]
        return row, np.array(rows_at(get_output(self._pointer), count, self._width)[-1])

    def cut(self, position: int) -> None:
        """Forget the rows from this position on."""
        lib.llama_memory_seq_rm(self._memory, 0, position, -1)

    def close(self) -> None:
        """Free the cache. Saying it twice is saying it once."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _pointer(self) -> Any:  # noqa: ANN401  a C pointer
        assert self._finalizer.alive, "the context is closed"
        return self._context

    def _decode(self, tokens: Sequence[int], features: np.ndarray, position: int, *, rows: bool) -> None:
        count = len(tokens)
        known = [min(token, self._last_token) for token in tokens]
        batch = self._batch.fill(known, position, rows=count if rows else 0, embeddings=features)
        self._run(lib.llama_decode, batch, count)

    def _run(self, call: Callable[[Any, Any], int], batch: Any, count: int) -> None:  # noqa: ANN401  a C struct
        """One call into llama.cpp, timed until its results are there."""
        pointer = self._pointer
        self.threads.choose(pointer, count)
        forget_log_errors()
        began, given = perf_counter(), process_time()
        with waiting_for(self.model.remote, self._pace.limit(count) if self._pace else 0.0):
            code = call(pointer, batch)
            lib.llama_synchronize(pointer)
        seconds, given = perf_counter() - began, process_time() - given
        self.busy_seconds += seconds
        if self._pace:
            self._pace.saw(count, seconds)
        if code:
            raise decode_failure(code, last_log_errors())
        self.threads.learn(count, seconds, given)


def _encoder_columns(model: Model) -> int:
    """Of what an encoder reads: the hidden rows of three layers of its target."""
    width = int(model.metadata[f"{model.architecture}.target_hidden_size"])
    return 3 * width


def _free(pointer: Any, model: Model, target: Context) -> None:  # noqa: ANN401  a C pointer
    del target
    with waiting_for(model.remote):
        lib.llama_free(pointer)
