"""The hidden rows of a model's layers, which prediction heads read: functions of llama.cpp's `llama-ext.h`.

They are C++ functions, so a library exports them under the names that its compiler made of them.
"""

import ctypes
import functools
from typing import Any

import numpy as np

from localspec.errors import BackendFailure
from localspec.llama.library import lib, symbol
from localspec.passes import HiddenRows

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
    """Reads what a context's layers held in its last decode: one row for each token, all layers side by side."""

    def __init__(self, context: Any, model: Any, wants: HiddenRows) -> None:  # noqa: ANN401  C pointers
        """From the next decode on; before the first one, as llama.cpp plans its memory with them."""
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
