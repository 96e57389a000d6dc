"""The output of a pass: rows of logits (whole, or the top-k logits), and hidden rows."""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from localspec.errors import BackendFailure
from localspec.llama.library import lib, symbol
from localspec.llama.lifetimes import free_with
from localspec.sampler.chain import finite
from localspec.sampler.passes import Candidates, HiddenRows, Row

_POINTER, _BOOL, _U32, _I32 = ctypes.c_void_p, ctypes.c_bool, ctypes.c_uint32, ctypes.c_int32
_get_logits = symbol("llama_get_logits", _POINTER, [_POINTER])
_get_top_ids = symbol("llama_get_sampled_candidates_ith", _POINTER, [_POINTER, _I32])
_get_top_ids_count = symbol("llama_get_sampled_candidates_count_ith", _U32, [_POINTER, _I32])
_get_top_logits = symbol("llama_get_sampled_logits_ith", _POINTER, [_POINTER, _I32])


class FullRows:
    """A reader of whole rows; a row is a read-only view that is valid until the next decode."""

    def __init__(self, vocab_size: int, shared: int) -> None:
        """`shared`: the number of logits in a row; these belong to the first tokens of the vocabulary."""
        self._vocab_size, self._shared = vocab_size, shared
        self._view = functools.lru_cache(64)(_array)  # cached, because llama.cpp's buffer seldom moves

        @functools.lru_cache(64)
        def rows(address: int, count: int) -> Sequence[np.ndarray]:
            return tuple(_array(address, ctypes.c_float, (count, shared), vocab_size))

        self._rows = rows

    def read(self, context: Any, count: int) -> Sequence[Any]:
        """Wait for the pass; return its last `count` rows."""
        rows = self._rows(_get_logits(context), count)
        check_finite(rows[-1])
        return rows


class TopRows(FullRows):
    """A reader of top-k logits. The device chooses these logits, so it sends only 8 * k bytes per row."""

    def read(
        self, context: Any, count: int, whole: Callable[[int], np.ndarray] | None = None
    ) -> Sequence[Row]:
        """Return the rows. `whole`: a function from a row's index to the whole row, which it computes again."""
        k = _get_top_ids_count(context, -count)
        if not k:
            raise BackendFailure("the device returned no results (logits)", hint="use the CPU: --device CPU")
        shape, stride = (count, k), self._vocab_size
        ids = self._view(_get_top_ids(context, -count), ctypes.c_int32, shape, stride)
        logits = self._view(_get_top_logits(context, -count), ctypes.c_float, shape, stride)
        check_finite(logits[-1])
        if self._shared < self._vocab_size:
            kept = zip(ids, logits, ids < self._shared, strict=True)
            return [Candidates(known[here], row[here]) for known, row, here in kept]
        wholes = [whole and functools.partial(whole, i) for i in range(count)]
        return list(map(Candidates, ids, logits, wholes))


def _array(address: int, kind: Any, shape: tuple[int, int], stride: int) -> np.ndarray:
    """Return a read-only view of C memory with this shape, in which rows begin `stride` elements apart."""
    count, width = shape
    flat = np.ctypeslib.as_array((kind * ((count - 1) * stride + width)).from_address(address))
    size = flat.itemsize
    return np.asarray(np.lib.stride_tricks.as_strided(flat, shape, (stride * size, size), writeable=False))


def check_finite(row: np.ndarray) -> None:
    """Raise BackendFailure for a row with NaN or +inf; -inf is allowed, because masked tokens have it."""
    finite(float(row[row.argmax()]))  # if there is a NaN, argmax returns its index


class TopK:
    """The samplers that choose top-k logits on the device, for some sequences. They stay as long as the context.

    If they changed later, llama.cpp would plan its memory again. On Vulkan their removal would corrupt the heap.
    """

    def __init__(self, k: int, params: Any, sequences: Sequence[int]) -> None:
        """Add a sampler chain with top-k `k` for each of `sequences` to `params`."""
        self._chains: dict[int, Any] = {}
        # This finalizer frees the chains even if the context cannot be made.
        self._finalizer = free_with(self, _free_samplers, self._chains)
        self._configs = (lib.llama_sampler_seq_config * len(sequences))()
        for number, config in zip(sequences, self._configs, strict=True):
            chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
            self._chains[number] = chain
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(k))
            config.seq_id, config.sampler = number, ctypes.cast(chain, ctypes.c_void_p)
        params.samplers, params.n_samplers = self._configs, len(sequences)

    def installed_on(self, context: Any) -> bool:
        """Return whether the samplers run on the context's device; if they do not, remove them."""
        chains = self._chains.values()
        names = [lib.llama_sampler_name(lib.llama_sampler_chain_get(chain, 0)) for chain in chains]
        if all(name.startswith(b"+") for name in names):  # "+": the sampler runs on the device
            return True
        for number in self._chains:
            lib.llama_set_sampler(context, number, None)
        self.free()
        return False

    def free(self) -> None:  # called only after the context is freed or has no samplers
        self._finalizer()


def _free_samplers(chains: Mapping[int, Any]) -> None:
    for chain in chains.values():
        lib.llama_sampler_free(chain)


def _extension(name: str, more: tuple[Any, ...], result: Any, gcc: str, msvc: tuple[str, str]) -> Any:
    """Return a C++ function with arguments (context, *more). `gcc`, `msvc`: parts of its mangled names."""

    @functools.cache
    def found() -> Any:
        names = (
            f"_Z{len(name)}{name}P13llama_context{gcc}",
            f"?{name}@@{msvc[0]}PEAUllama_context@@{msvc[1]}@Z",
        )
        return symbol((*names, name), result, (_POINTER, *more))

    return lambda *given: found()(*given)


set_output = _extension("llama_set_embeddings_nextn", (_BOOL, _BOOL), None, "bb", ("YAX", "_N1"))
get_output = _extension("llama_get_embeddings_nextn", (), _POINTER, "", ("YAPEAM", ""))
choose_prediction_layer = _extension("llama_set_nextn_layer_offset", (_I32,), None, "i", ("YAX", "H"))
_set_layer = _extension("llama_set_embeddings_layer_inp", (_U32, _BOOL), None, "jb", ("YAX", "I_N"))
_get_layer = _extension("llama_get_embeddings_layer_inp", (_U32,), _POINTER, "j", ("YAPEAM", "I"))


class HiddenReader:
    """A reader of the last pass's hidden rows. The row of a token has the columns of all requested layers."""

    def __init__(self, context: Any, model: Any, wants: HiddenRows) -> None:
        """Enable hidden rows. Call it before the first decode, which reserves their memory."""
        self._context, self._layers, self._output = context, wants.layers, wants.output
        self._width: int = lib.llama_model_n_embd(model)
        self._output_width: int = lib.llama_model_n_embd_out(model)
        for layer in wants.layers:
            _set_layer(context, layer, True)
        if wants.output:
            set_output(context, True, False)

    def read(self, count: int) -> np.ndarray:
        """Return a copy of the hidden rows of the last `count` decoded tokens, float32 [count, columns]."""
        parts = [rows_at(_get_layer(self._context, layer), count, self._width) for layer in self._layers]
        if self._output:
            parts.append(rows_at(get_output(self._context), count, self._output_width))
        return np.concatenate(parts, axis=1)


def rows_at(address: int | None, count: int, width: int) -> np.ndarray:
    """Return a read-only view of C memory, float32 [count, width]."""
    if not address:
        what = "llama.cpp does not give this model's hidden states, so a prediction head cannot draft for it"
        raise BackendFailure(what, hint="run the model without a head: --no-draft")
    rows = np.ctypeslib.as_array((ctypes.c_float * (count * width)).from_address(address))
    rows.flags.writeable = False
    return rows.reshape(count, width)
