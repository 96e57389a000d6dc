"""LoRA adapters: small files that change what a model's matrices do."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import BackendFailure, BadModelFile
from localspec.llama.failures import reason
from localspec.llama.library import forget_log_errors, last_log_errors, lib
from localspec.stopping import Held


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter in memory; it is freed with its model."""

    pointer: Any
    scale: float


def load_adapter(model: Any, path: Path, scale: float) -> LoadedAdapter:  # noqa: ANN401  a C pointer
    """Raises BadModelFile for one that llama.cpp cannot add to this model."""
    forget_log_errors()
    with Held():
        pointer = lib.llama_adapter_lora_init(model, os.fsencode(path))
    if not pointer:
        raise BadModelFile(
            f"{path.name} cannot be added to the target: {reason(last_log_errors())}",
            hint="use an adapter that was made for this model",
        )
    return LoadedAdapter(pointer, scale)


def use_adapters(context: Any, adapters: Sequence[LoadedAdapter]) -> None:  # noqa: ANN401  a C pointer
    """From now on a context decodes with these."""
    if not adapters:
        return
    count = len(adapters)
    pointers = (lib.llama_adapter_lora_p_ctypes * count)(*(adapter.pointer for adapter in adapters))
    scales = (ctypes.c_float * count)(*(adapter.scale for adapter in adapters))
    if lib.llama_set_adapters_lora(context, pointers, count, scales):
        raise BackendFailure("llama.cpp refused the adapters", hint="run without --lora")
