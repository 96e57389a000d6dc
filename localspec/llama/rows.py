"""The output of a decode: rows of logits, whole or the largest ones, and hidden rows."""

import ctypes
import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from localspec.errors import BackendFailure
from localspec.llama.library import lib, symbol
from localspec.sampler.passes import Candidates, HiddenRows

_get_logits = symbol("llama_get_logits", ctypes.c_void_p, [ctypes.c_void_p])
_ith = [ctypes.c_void_p, ctypes.c_int32]
_get_top_ids = symbol("llama_get_sampled_candidates_ith", ctypes.c_void_p, _ith)
_get_top_ids_count = symbol("llama_get_sampled_candidates_count_ith", ctypes.c_uint32, _ith)
_get_top_logits = symbol("llama_get_sampled_logits_ith", ctypes.c_void_p, _ith)


class FullRows:
    """Rows over the whole vocabulary, or its beginning: read-only views that are valid until the next decode."""

    def __init__(self, vocab_size: int, shared: int) -> None:
        """`shared`: tokens that a row holds, counted from the first."""
        self._vocab_size = vocab_size
        self._shared = shared
        self._view = functools.lru_cache(64)(self._new_view)  # llama.cpp's buffer seldom moves

    def read(self, context: Any, count: int) -> tuple[np.ndarray, ...]:  # noqa: ANN401  a C pointer
        """Wait for the computation and view its last `count` rows."""
        whole, rows = self._view(_get_logits(context), count)
        check_finite(whole[-1])
        return rows

    def _new_view(self, address: int, count: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        whole = _array(address, ctypes.c_float, (count, self._shared), self._vocab_size)
        return whole, tuple(whole)


class TopRows:
    """Only the k largest logits of every row, chosen on the device: 8 k bytes a row instead of 4 a token."""

    def __init__(self, vocab_size: int, shared: int) -> None:
        """`shared`: tokens that a row may hold, counted from the first."""
        self._vocab_size = vocab_size
        self._shared = shared
        self._view = functools.lru_cache(64)(_array)

    def read(
        self,
        context: Any,  # noqa: ANN401  a C pointer
        count: int,
        whole: Callable[[int], np.ndarray] | None = None,
    ) -> Sequence[Candidates]:
        """Wait for the computation and view its rows; llama_get_logits would now return something else.

        `whole`: gives a row of these as a whole, by its number.
        """
        k = _get_top_ids_count(context, -count)
        if not k:
            raise BackendFailure("llama.cpp returned no candidates", hint="run it on the CPU: --gpu-layers 0")
        shape, stride = (count, k), self._vocab_size
        ids = self._view(_get_top_ids(context, -count), ctypes.c_int32, shape, stride)
        logits = self._view(_get_top_logits(context, -count), ctypes.c_float, shape, stride)
        check_finite(logits[-1])
        if self._shared < self._vocab_size:
            return [self._known(*row) for row in zip(ids, logits, strict=True)]
        wholes = [whole and functools.partial(whole, i) for i in range(count)]
        return list(map(Candidates, ids, logits, wholes))

    def _known(self, ids: np.ndarray, logits: np.ndarray) -> Candidates:
        known = ids < self._shared
        return Candidates(ids[known], logits[known])


def _array(address: int, kind: Any, shape: tuple[int, int], stride: int) -> np.ndarray:  # noqa: ANN401  ctypes types
    """A read-only view of C memory: rows of `shape`, `stride` elements apart."""
    count, width = shape
    flat = np.ctypeslib.as_array((kind * ((count - 1) * stride + width)).from_address(address))
    size = flat.itemsize
    view = np.lib.stride_tricks.as_strided(flat, shape, (stride * size, size), writeable=False)
    return view


def check_finite(row: np.ndarray) -> None:
    """A broken row has a maximum that is NaN or infinite; -inf for single tokens is legal (masked ones).

    The last row stands for its batch: earlier broken rows reach it through the cache. The sampler chain checks every
    row that it uses.
    """
    if not math.isfinite(row.max()):
        raise BackendFailure(
            "the model produced numbers that are not finite",
            hint="the file may be damaged, or this quantisation overflows on this device: try another one",
        )


class TopK:
    """One chain with one k for each of some sequences, for the life of a context.

    A change makes llama.cpp plan its memory again, and taking the chain out corrupts the heap on Vulkan devices.
    """

    def __init__(self, k: int, params: Any, sequences: Sequence[int]) -> None:  # noqa: ANN401  a C struct
        """The context that is made with `params` begins with a chain for each of these sequences.

        So its memory is planned with them.
        """
        self._chains: dict[int, Any] = {}
        # If the context cannot be made, nobody else frees the chains.
        self._finalizer = weakref.finalize(self, _free_samplers, self._chains)
        for number in sequences:
            self._chains[number] = chain = lib.llama_sampler_chain_init(
                lib.llama_sampler_chain_default_params()
            )
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(k))
        self._configs = (lib.llama_sampler_seq_config * len(sequences))(
            *(
                lib.llama_sampler_seq_config(seq_id=number, sampler=ctypes.cast(chain, ctypes.c_void_p))
                for number, chain in self._chains.items()
            )
        )
        params.samplers, params.n_samplers = self._configs, len(sequences)

    def installed_on(self, context: Any) -> bool:  # noqa: ANN401  a C pointer
        """Whether it runs on the device of the context; if not, it is removed."""
        # Only the sampler's name tells.
        names = [
            lib.llama_sampler_name(lib.llama_sampler_chain_get(chain, 0)) for chain in self._chains.values()
        ]
        if all(name.startswith(b"+") for name in names):
            return True
        for number in self._chains:
            lib.llama_set_sampler(context, number, None)
        self.free()
        return False

    def free(self) -> None:
        """Only after the context was freed or told to forget the chains."""
        self._finalizer()


def _free_samplers(chains: Mapping[int, Any]) -> None:
    for chain in chains.values():
        lib.llama_sampler_free(chain)


_POINTER, _BOOL, _U32, _I32 = ctypes.c_void_p, ctypes.c_bool, ctypes.c_uint32, ctypes.c_int32


def _extension(name: str, arguments: tuple[Any, ...], result: Any, gcc: str, msvc: str) -> Any:  # noqa: ANN401
    """A function under the name that GCC and Clang give it, MSVC does, or C would."""

    @functools.cache
    def found() -> Any:  # noqa: ANN401  ctypes has no better type
        return symbol((f"_Z{len(name)}{name}{gcc}", f"?{name}@@{msvc}@Z", name), result, arguments)

    return lambda *given: found()(*given)


_C, _P = "P13llama_context", "PEAUllama_context@@"
set_output = _extension(
    "llama_set_embeddings_nextn", (_POINTER, _BOOL, _BOOL), None, f"{_C}bb", f"YAX{_P}_N1"
)
get_output = _extension("llama_get_embeddings_nextn", (_POINTER,), _POINTER, _C, "YAPEAMPEAUllama_context@@")
choose_prediction_layer = _extension(
    "llama_set_nextn_layer_offset", (_POINTER, _I32), None, f"{_C}i", f"YAX{_P}H"
)
_set_layer = _extension(
    "llama_set_embeddings_layer_inp", (_POINTER, _U32, _BOOL), None, f"{_C}jb", f"YAX{_P}I_N"
)
_get_layer = _extension(
    "llama_get_embeddings_layer_inp", (_POINTER, _U32), _POINTER, f"{_C}j", f"YAPEAM{_P}I"
)


class HiddenReader:
    """Reads the hidden rows of a context's last decode: one row for each token, all layers side by side."""

    def __init__(self, context: Any, model: Any, wants: HiddenRows) -> None:  # noqa: ANN401  C pointers
        """Give rows from the next decode on; call it before the first one, because llama.cpp plans its memory with
        them.
        """
        self._context = context
        self._layers = wants.layers
        self._output = wants.output
        self._width: int = lib.llama_model_n_embd(model)
        self._output_width: int = lib.llama_model_n_embd_out(model)
        for layer in wants.layers:
            _set_layer(context, layer, True)
        if wants.output:
            set_output(context, True, False)

    def read(self, count: int) -> np.ndarray:
        """Rows of the last `count` tokens that were decoded, float32 [count, columns]: a copy."""
        parts = [rows_at(_get_layer(self._context, layer), count, self._width) for layer in self._layers]
        if self._output:
            parts.append(rows_at(get_output(self._context), count, self._output_width))
        return np.concatenate(parts, axis=1)


def rows_at(address: int | None, count: int, width: int) -> np.ndarray:
    """A read-only view of C memory, float32 [count, width]."""
    if not address:
        raise BackendFailure(
            "llama.cpp gives no hidden rows of this model, which a prediction head reads",
            hint="run it without a head: --no-draft",
        )
    rows = np.ctypeslib.as_array((ctypes.c_float * (count * width)).from_address(address))
    rows.flags.writeable = False
    return rows.reshape(count, width)
