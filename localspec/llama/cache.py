"""A context of llama.cpp, and the parameters of new ones."""

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter, process_time
from typing import Any

from localspec.errors import BadSetting
from localspec.health.stopping import Closing, Held, heeded
from localspec.llama.failures import context_failure, decode_failure
from localspec.llama.library import forget_log_errors, last_log_errors, lib
from localspec.llama.model import Model
from localspec.llama.rows import TopK
from localspec.llama.threads import Threads, thread_count
from localspec.llama.watch import LOADING_SECONDS, Pace, waiting_for

WIDEST = 16  # tokens of a lane in a pass with others, if it does not want rows of more
_CELLS = 256  # llama.cpp warns of a stream that is no multiple
_LONGEST = 2**25  # tokens: above every model; llama.cpp would fill the memory with its cell table first
_KV_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which llama_cpp leaves out
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "q4_0": lib.GGML_TYPE_Q4_0,
    "iq4_nl": lib.GGML_TYPE_IQ4_NL,
}
_FLASH_ATTENTION = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}

# llama.cpp asks after every node of a graph: a function of C, as Python would take a microsecond and the GIL.
_asked = ctypes.cast(
    ctypes.CDLL("msvcrt" if sys.platform == "win32" else None).strlen, lib.ggml_abort_callback
)


class Cache(Closing):
    """A context of llama.cpp, whose calls are timed: not for two threads at once."""

    def __init__(self, model: Model, params: Any, *held: object) -> None:  # noqa: ANN401  a C struct
        """`held` and the model live as long as the context, so that garbage collection cannot free them first."""
        forget_log_errors()
        with Held(), waiting_for(model.remote, LOADING_SECONDS):
            pointer = lib.llama_init_from_model(model.pointer, params)
        if not pointer:
            raise context_failure(model.name, params.n_ctx, last_log_errors())
        self.model = model
        self.busy_seconds = 0.0  # inside llama.cpp, until its results were there
        self.capacity: int = lib.llama_n_ctx(pointer)
        self.chunk: int = lib.llama_n_batch(pointer)
        self.threads = Threads(params.n_threads)
        self._threads_now = params.n_threads
        self._context, self._memory = pointer, lib.llama_get_memory(pointer)
        self._pace = Pace() if model.remote else None
        self._finalizer = weakref.finalize(self, _free, pointer, model, held)
        model.contexts.add(self)

    @property
    def handle(self) -> Any:  # noqa: ANN401  a C pointer, for this package only
        assert self._finalizer.alive, "the context is closed"
        return self._context

    def close(self) -> None:
        """Free the cache and the buffers of its rows; idempotent."""
        self._finalizer()

    def run(
        self,
        call: Callable[[Any, Any], int],
        batch: Any,  # noqa: ANN401  a C struct
        count: int,
        *,
        threads: Threads | None = None,
    ) -> None:
        """One call over `count` rows, timed until its results are there. Raises as Context.decode does.

        `threads`: in place of the context's own.
        """
        pointer, threads = self.handle, threads or self.threads
        if (wanted := threads.wanted(count)) != self._threads_now:
            lib.llama_set_n_threads(pointer, wanted, wanted)
            self._threads_now = wanted
        forget_log_errors()
        began, given = perf_counter(), process_time()
        stop, seconds = heeded(), self._pace.limit(count) if self._pace else 0.0
        if stop:  # on a CPU the pass ends when this thread should stop
            lib.llama_set_abort_callback(pointer, _asked, stop.address)
        try:
            # A CPU logs nothing while it decodes.
            with Held() if self.model.gpus else nullcontext(), waiting_for(self.model.remote, seconds):
                code = call(pointer, batch)
                lib.llama_synchronize(pointer)
        finally:
            if stop:
                lib.llama_set_abort_callback(pointer, lib.ggml_abort_callback(), None)
        seconds, given = perf_counter() - began, process_time() - given
        self.busy_seconds += seconds
        if self._pace:
            self._pace.saw(count, seconds)
        if code:
            raise decode_failure(code, last_log_errors())
        threads.learn(count, seconds, given)


def _free(pointer: Any, model: Model, held: Sequence[object]) -> None:  # noqa: ANN401  a C pointer
    with Held(), waiting_for(model.remote):
        lib.llama_free(pointer)
    for sampler in (one for one in held if isinstance(one, TopK)):
        sampler.free()


def pipelines(model: Model) -> bool:
    """Whether a GPU can read one part of a prompt while the next GPU reads the part before it."""
    return len(model.gpus) > 1 and model.all_on_gpu and not model.remote


def make_room(params: Any, chunk: int, rows: int, chunks: int = 1, lanes: int = 1) -> None:  # noqa: ANN401
    """Set room for `chunk` tokens in a chunk, for `chunks` of these in one call, and for the rows of one.

    `lanes`: sequences, each with a stream of the cache that is as long as one alone would have.
    """
    params.n_seq_max = lanes
    params.n_ctx = max(params.n_ctx, rows)  # a chunk is never longer than the context
    if lanes > 1:
        params.n_ctx = -(-params.n_ctx // _CELLS) * _CELLS * lanes
    params.n_ubatch = min(max(chunk, max(rows, WIDEST) * lanes if lanes > 1 else rows), params.n_ctx)
    params.n_batch = min(params.n_ubatch * chunks, params.n_ctx)
    params.n_outputs_max, params.n_outputs_max_per_seq = rows * lanes, rows


def params_of(
    model: Model,
    length: int,
    threads: int | None = None,  # on the CPU; None: the physical cores
    kv_type_k: str = "f16",
    kv_type_v: str = "f16",
    flash_attn: str = "auto",  # on, off or auto, which is on where every layer's device can do it
) -> Any:  # noqa: ANN401  a C struct
    """Context parameters from checked settings."""
    if not 1 <= length <= _LONGEST:
        raise BadSetting(f"no context can have {length:,} tokens", hint=f"use 1 to {_LONGEST:,}")
    for name in (kv_type_k, kv_type_v):
        if name not in _KV_TYPES:
            raise BadSetting(f"no KV cache type called {name!r}", hint=f"there are: {', '.join(_KV_TYPES)}")
    if flash_attn not in _FLASH_ATTENTION:
        raise BadSetting(
            f"flash attention cannot be {flash_attn!r}", hint=f"it is one of {', '.join(_FLASH_ATTENTION)}"
        )
    params = lib.llama_context_default_params()
    params.n_ctx = length
    params.flash_attn_type = _FLASH_ATTENTION[flash_attn]
    params.type_k, params.type_v = _KV_TYPES[kv_type_k], _KV_TYPES[kv_type_v]
    # Where a cache of the window's size would spare little.
    params.swa_full = 2 * lib.llama_model_n_swa(model.pointer) >= length
    params.n_threads = params.n_threads_batch = thread_count(threads)
    params.no_perf = True
    return params
