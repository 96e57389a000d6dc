"""A context of llama.cpp with its KV cache, and the parameters of new contexts."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Condition
from time import perf_counter, process_time
from typing import Any

from localspec.errors import BadSetting
from localspec.llama.library import context_failure, decode_failure, forget_log_errors, lib
from localspec.llama.lifetimes import (
    LOADING_SECONDS,
    CallTimes,
    computes_here,
    free_with,
    waiting_for,
)
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.llama.rows import TopK
from localspec.llama.threads import Threads, beside, default_threads
from localspec.stopping import Closing, DelayedInterrupt, current_stop, interruptible, leave_at_end, own_stop

WIDEST = 16  # maximum tokens of one slot in a shared pass, unless more of the slot's tokens need logits
_CELLS = 256  # llama.cpp warns if the number of KV cache cells of a slot is not a multiple of 256
_LONGEST = 2**25  # maximum tokens in a slot; with more, llama.cpp's table of KV cells could fill the memory
_KV_TYPES = {  # numbers in llama.cpp's enum ggml_type
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20,
}  # fmt: skip
_FLASH_ATTENTION = {"auto": -1, "on": 1, "off": 0}  # numbers in llama.cpp's enum llama_flash_attn_type

# llama.cpp calls `_asked` after every node of a graph: C's strlen, because a Python function would need the GIL.
# A Stop is an empty C string until a stop is requested, so strlen returns 0.
_libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
_asked = ctypes.cast(_libc.strlen, lib.ggml_abort_callback)


class Cache(Closing):
    snapshots = 0  # maximum tokens to roll back in a recurrent state; llama.cpp keeps a snapshot for each
    window = 0  # number of tokens in the sliding window; 0: the KV cache drops no tokens
    spare = 0  # id of the sequence with a checkpoint on the device; 0: no such sequence
    slot_count = 1

    def __init__(self, model: Model, params: Any, *held: object) -> None:
        """Make a context. It keeps `model` and `held` alive, because they must be freed after the context."""
        forget_log_errors()
        with DelayedInterrupt(), waiting_for(model.remote, LOADING_SECONDS):
            pointer = lib.llama_init_from_model(model.pointer, params)
        if not pointer:
            raise context_failure(model.name, params.n_ctx)
        self.model = model
        self.busy_seconds = 0.0  # total seconds of all calls of `run`
        # Start time and number of tokens of a pass that a device may still be computing; None: there is none.
        self._queued: tuple[float, int] | None = None
        self.capacity: int = lib.llama_n_ctx(pointer)
        self.chunk: int = lib.llama_n_batch(pointer)
        self.threads = Threads(params.n_threads)
        self._threads_now = params.n_threads
        self._stop: object = None  # the Stop that llama.cpp checks; this reference keeps the Stop alive
        self.calling = Condition()  # a lock for each call into llama.cpp, because threads must take turns
        self._context, self.memory = pointer, lib.llama_get_memory(pointer)
        self.pace = CallTimes() if model.remote else None
        self._finalizer = free_with(self, _free, pointer, model, held)
        model.contexts.add(self)

    @property
    def handle(self) -> Any:
        assert self._finalizer.alive, "the context is closed"
        return self._context

    def close(self) -> None:
        self._queued = None  # no `settle` is needed, because `_free` waits for the device
        self._finalizer()

    def copy_sequence(self, source: int, to: int) -> None:
        lib.llama_memory_seq_rm(self.memory, to, -1, -1)
        lib.llama_memory_seq_cp(self.memory, source, to, -1, -1)

    def run(
        self,
        call: Callable[[Any, Any], int],
        batch: Any,
        count: int,
        *,
        threads: Threads | None = None,
        late: bool = False,
    ) -> None:
        """Run `call` on a batch of `count` tokens, and time it. Raises the error that `decode_failure` returns.

        `late`: whether a device may still be computing at the return; `settle` then waits for it.
        """
        with self.calling:
            self.settle()
            pointer, threads = self.handle, threads or self.threads
            if (wanted := threads.wanted(count)) != self._threads_now:
                lib.llama_set_n_threads(pointer, wanted, wanted)
                self._threads_now = wanted
            forget_log_errors()
            leave_at_end()
            began, here = perf_counter(), computes_here()
            stop = current_stop() if here else own_stop()
            if stop is not self._stop:  # only then, because llama.cpp logs each new callback
                # With this callback llama.cpp ends a pass on a CPU soon after `stop` is set.
                lib.llama_set_abort_callback(pointer, _asked, stop.address)
                self._stop = stop
            work = partial(call, pointer, batch)
            # On a GPU llama.cpp may log during a pass, and Python would lose a Ctrl-C inside the log callback.
            delayed = DelayedInterrupt() if self.model.gpus else nullcontext()
            given = process_time()
            with delayed, self._watched(count), beside(wanted * bool(threads.contention)) as counts:
                code = work() if here else interruptible(work, stop, cancelled=lambda: False)
                if not late:
                    lib.llama_synchronize(pointer)
            if late and not code:
                self._queued = began, count
                return
            seconds = self._timed(began, count)
            if code:
                leave_at_end()
                raise decode_failure(code)
            if threads.contention:
                share = wanted / max(counts)  # other pairs of this process have the rest of the time
                threads.contention.learn(wanted, count, seconds, share * (process_time() - given), share < 1)

    def settle(self) -> float:
        """Wait for the pass that a device still computes, and return its seconds, also added to `busy_seconds`."""
        with self.calling:
            if not self._queued:
                return 0.0
            (began, count), self._queued = self._queued, None
            with DelayedInterrupt(), self._watched(count):
                lib.llama_synchronize(self.handle)
            return self._timed(began, count)

    def _watched(self, count: int) -> AbstractContextManager[None]:
        return waiting_for(self.model.remote, self.pace.limit(count)) if self.pace else nullcontext()

    def _timed(self, began: float, count: int) -> float:
        seconds = perf_counter() - began
        self.busy_seconds += seconds
        if self.pace:
            self.pace.saw(count, seconds)
        return seconds


def _free(pointer: Any, model: Model, held: Sequence[object]) -> None:
    with DelayedInterrupt(), waiting_for(model.remote):
        lib.llama_synchronize(pointer)  # wait for a device that may still compute a pass
        lib.llama_free(pointer)
    for sampler in (one for one in held if isinstance(one, TopK)):
        sampler.free()


def size_context(params: Any, chunk: int, rows: int, slots: int = 1) -> None:
    """Set the batch sizes in `params`: `chunk` tokens in a pass, and `rows` rows of logits for each slot."""
    params.n_seq_max = slots
    params.n_ctx = max(params.n_ctx, rows)  # a pass of `rows` tokens must fit into n_ctx
    if slots > 1:
        params.n_ctx = -(-params.n_ctx // _CELLS) * _CELLS * slots
    params.n_ubatch = min(max(chunk, max(rows, WIDEST) * slots if slots > 1 else rows), params.n_ctx)
    params.n_batch = params.n_ubatch
    params.n_outputs_max, params.n_outputs_max_per_seq = rows * slots, rows


def params_of(model: Model, load: Load) -> Any:
    length, kv_type, flash_attn = load.length, load.kv_type, load.flash_attn
    if not 1 <= length <= _LONGEST:
        raise BadSetting(f"a context cannot have {length:,} tokens", hint=f"choose 1 to {_LONGEST:,} tokens")
    if kv_type not in _KV_TYPES:
        raise BadSetting(f"there is no KV cache type {kv_type!r}", hint=f"use one of {', '.join(_KV_TYPES)}")
    if flash_attn not in _FLASH_ATTENTION:
        what = f"{flash_attn!r} is not a valid value of flash attention"
        raise BadSetting(what, hint=f"use one of {', '.join(_FLASH_ATTENTION)}")
    params = lib.llama_context_default_params()
    params.n_ctx = length
    params.flash_attn_type = _FLASH_ATTENTION[flash_attn]
    params.type_k = params.type_v = _KV_TYPES[kv_type]
    # If the context is at most twice as long as the sliding window, keep older tokens too: they take little memory.
    params.swa_full = 2 * lib.llama_model_n_swa(model.pointer) >= length
    params.n_threads = params.n_threads_batch = load.threads or default_threads()
    params.no_perf = True
    return params
