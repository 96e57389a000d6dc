"""The cache of a prediction head in llama.cpp, and calls on it that are timed."""

import weakref
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np

from localspec.closing import Closing
from localspec.llama.checkpoints import restore_state, state_of
from localspec.llama.contention import Threads
from localspec.llama.context import Context, computing, make_room, new_context, params_of
from localspec.llama.failures import decode_failure
from localspec.llama.library import forget_log_errors, last_log_errors, lib
from localspec.llama.model import Model
from localspec.llama.threads import thread_count
from localspec.llama.watch import Pace, waiting_for
from localspec.stopping import Held


class HeadCache(Closing):
    """A context beside its target's: not for two threads at once, nor while the target decodes."""

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        chunk: int,
        rows: int,
        predicts: bool,
        length: int,
        threads: int | None = None,
        kv_type_k: str = "f16",
        kv_type_v: str = "f16",
        flash_attn: str = "auto",
    ) -> None:
        """Room for `length` rows, `chunk` of them in one call, and `rows` where they come with their logits.

        predicts: whether it runs the prediction layers of a model (MTP). Raises as Context does.
        """
        params = params_of(length, lib.llama_model_n_swa(model.pointer), kv_type_k, kv_type_v, flash_attn)
        make_room(params, chunk, rows)
        params.n_threads = params.n_threads_batch = thread_count(threads)
        params.ctx_other = target.handle
        if predicts:
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        pointer = new_context(model, params, length)
        self.busy_seconds = 0.0  # inside llama.cpp, until its results were there
        self.capacity: int = lib.llama_n_ctx(pointer)
        self.chunk: int = lib.llama_n_batch(pointer)
        self.threads = Threads(params.n_threads)
        self.model = model
        self._context: Any = pointer
        self._memory: Any = lib.llama_get_memory(pointer)
        self._pace = Pace() if model.remote else None
        # The finalizer holds the models and the target's context, so that garbage collection cannot free them first.
        self._finalizer = weakref.finalize(self, _free, pointer, model, target)

    @property
    def handle(self) -> Any:  # noqa: ANN401  a C pointer, for this package only
        assert self._finalizer.alive, "the context is closed"
        return self._context

    @property
    def next_position(self) -> int:
        """After the last row."""
        return int(lib.llama_memory_seq_pos_max(self._memory, 0)) + 1

    def cut(self, position: int) -> None:
        """Forget the rows from this position on."""
        lib.llama_memory_seq_rm(self._memory, 0, position, -1)

    def state(self) -> np.ndarray | None:
        """A copy of the cache's state, uint8; None where llama.cpp cannot copy it."""
        return None if self.model.remote else state_of(self.handle)

    def restore(self, state: np.ndarray) -> bool:
        """Bring a state back; False where that fails, and the cache is empty then."""
        lib.llama_memory_clear(self._memory, True)
        if restore_state(self.handle, state):
            return True
        lib.llama_memory_clear(self._memory, True)
        return False

    def close(self) -> None:
        """Free it. Saying it twice is saying it once."""
        self._finalizer()

    def run(self, call: Callable[[Any, Any], int], batch: Any, count: int) -> None:  # noqa: ANN401  a C struct
        """One call over `count` rows, timed until its results are there. Raises as Context.decode does."""
        pointer = self.handle
        self.threads.choose(pointer, count)
        forget_log_errors()
        began, given = perf_counter(), process_time()
        with computing(pointer, self.model, self._pace.limit(count) if self._pace else 0.0):
            code = call(pointer, batch)
            lib.llama_synchronize(pointer)
        seconds, given = perf_counter() - began, process_time() - given
        self.busy_seconds += seconds
        if self._pace:
            self._pace.saw(count, seconds)
        if code:
            raise decode_failure(code, last_log_errors())
        self.threads.learn(count, seconds, given)


def _free(pointer: Any, model: Model, target: Context) -> None:  # noqa: ANN401  a C pointer
    del target
    with Held(), waiting_for(model.remote):
        lib.llama_free(pointer)
