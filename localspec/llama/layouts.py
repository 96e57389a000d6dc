"""The known layouts of the structures that llama.cpp takes by value, recognised by their default values.

If a field had another place than the library expects, the library would read wrong values or write past the end.
"""

import ctypes
import platform
import sys
from pathlib import Path
from typing import Any

from localspec.errors import BackendFailure

# The layouts by version, the oldest first: a field that llama-cpp-python 0.3.36 lacks, its type, and the next field.
_MOE = "moe_cache_size", ctypes.c_size_t, "abort_callback"
LAYOUTS: dict[str, dict[str, tuple[str, Any, str]]] = {"0.5": {}, "0.6": {"llama_context_params": _MOE}}
NEWEST = [*LAYOUTS][-1]
_ALL, _NEGATIVE = 0xFFFFFFFF, 0xBF800000  # the bits of -1, as an integer and as a float
# Fields whose default is the same in every known version of llama.cpp
_DEFAULTS = {
    "llama_model_params": {
        **{"devices": 0, "n_gpu_layers": _ALL, "split_mode": 1, "main_gpu": 0, "tensor_split": 0},
        **{"kv_overrides": 0, "vocab_only": 0, "use_extra_bufts": 1, "no_alloc": 0},
    },
    "llama_context_params": {
        **{"n_seq_max": 1, "rope_scaling_type": _ALL, "attention_type": _ALL, "yarn_ext_factor": _NEGATIVE},
        **{"cb_eval": 0, "type_k": 1, "type_v": 1, "abort_callback": 0, "embeddings": 0, "offload_kqv": 1},
        **{"op_offload": 1, "samplers": 0, "n_samplers": 0, "ctx_other": 0},
    },
    "llama_sampler_chain_params": {"no_perf": 1},
    "mtmd_context_params": {
        **{"use_gpu": 1, "device": 0, "print_timings": 1, "image_marker": 0, "flash_attn_type": _ALL},
        **{"warmup": 1, "image_min_tokens": _ALL, "cb_eval": 0, "progress_callback": 0},
    },
}
# Processors on which a C function writes a large structure to the caller's memory, so its size can be measured
_SEES_SIZES = ("x86_64", "AMD64")
_IN_REGISTERS = 16  # maximum bytes of a structure that may be returned in registers
_UNWRITTEN = b"\xa5"
_SPARE_BYTES = 4096  # bytes after a structure, because a newer library may write more fields


def build_of(library: ctypes.CDLL) -> str:
    """Return the folder of a llama.cpp, its version and its commit."""
    found = [getattr(library, name, None) for name in ("llama_version", "ggml_commit")]
    for function in filter(None, found):
        function.restype = ctypes.c_char_p
    version, commit = ((function() or b"").decode() if function else "unknown" for function in found)
    return f"{Path(library._name).parent} ({version}, commit {commit})"


def use_layout(bindings: Any, library: ctypes.CDLL, functions: dict[str, str]) -> str:
    """Give the structures of `bindings` the library's layout, and return its name. Raises BackendFailure.

    `functions`: by structure, the function that returns its default values.
    """
    found = {name: _returned(library[function]) for name, function in functions.items()}
    for layout, more in reversed(LAYOUTS.items()):
        kinds = {name: _with(getattr(bindings, name), more.get(name)) for name in found}
        if all(_fits(kind, found[name], _DEFAULTS[name]) for name, kind in kinds.items()):
            _replace(bindings, kinds)
            return layout
    what = f"the llama.cpp in {build_of(library)} does not fit: its parameters have an unknown layout"
    hint = f"use a build of llama.cpp {' or '.join(LAYOUTS)}, or leave out llama and LLAMA_CPP_LIB_PATH"
    raise BackendFailure(f"{what}; the newest known one is that of llama.cpp {NEWEST}", hint=hint)


def _returned(function: Any) -> bytes:
    """Return the structure that a function returns, with _UNWRITTEN where it wrote nothing."""
    if platform.machine() in _SEES_SIZES:
        place = ctypes.create_string_buffer(_UNWRITTEN * _SPARE_BYTES)
        function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p]
        small = bytes([function(place) & 0xFF])  # the result, if it is small enough for a register
        return place.raw[:-1].rstrip(_UNWRITTEN) or small
    more = [("all", ctypes.c_char * _SPARE_BYTES)]
    function.restype = type("Larger", (ctypes.Structure,), {"_fields_": more})
    return bytes(function())


def _with(kind: Any, more: tuple[str, Any, str] | None) -> Any:
    names = [name for name, *_ in kind._fields_]
    if more is None or more[0] in names:  # newer bindings have this field already
        return kind
    fields = list(kind._fields_)
    fields.insert(names.index(more[2]), more[:2])
    return type(kind.__name__, (ctypes.Structure,), {"_fields_": fields})


def _fits(kind: Any, raw: bytes, defaults: dict[str, int]) -> bool:
    last, size = getattr(kind, kind._fields_[-1][0]), ctypes.sizeof(kind)
    if platform.machine() in _SEES_SIZES:
        if not last.offset < len(raw) <= size or any(raw[last.offset + last.size :]):
            return False
    elif size <= _IN_REGISTERS:
        return True
    places = [(getattr(kind, field), value) for field, value in defaults.items()]
    found = [int.from_bytes(raw[at.offset : at.offset + at.size], sys.byteorder) for at, _ in places]
    return found == [value for _, value in places]


def _replace(bindings: Any, kinds: dict[str, Any]) -> None:
    new = {getattr(bindings, name): kind for name, kind in kinds.items()}
    vars(bindings).update(kinds)
    for function in vars(bindings).values():
        if not isinstance(function, type) and hasattr(function, "argtypes"):
            function.restype = new.get(function.restype, function.restype)
            function.argtypes = [new.get(given, given) for given in function.argtypes or ()]
