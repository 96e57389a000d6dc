"""Where a model's weights go, in llama.cpp's parameters."""

import ctypes
from collections.abc import Sequence
from typing import Any

from localspec.errors import BadSetting
from localspec.health.check import health
from localspec.health.missing import missing_device
from localspec.llama import devices
from localspec.llama.library import lib, symbol

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # of a layer; llama.cpp's own pattern for --n-cpu-moe
_cpu_buffers = symbol("ggml_backend_cpu_buffer_type", ctypes.c_void_p, [])


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override: where the tensors go whose names hold a pattern."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffers", ctypes.c_void_p))


def chosen_gpus(names: Sequence[str] | None, gpu_layers: int | None) -> tuple[devices.Device, ...]:
    """The GPUs to use, none for the CPU alone; BadSetting for what this machine cannot do."""
    if names is None:
        default = devices.default_gpu()
        gpus: tuple[devices.Device, ...] = (default,) if default else ()
    else:
        known = {found.name.lower(): found for found in devices.devices()}
        for name in names:
            if name.lower() not in known:
                raise missing_device(name, (found.name for found in known.values()))
        chosen = (known[name.lower()] for name in names)
        gpus = tuple(device for device in chosen if device.is_gpu)
    if gpu_layers and gpu_layers > 0 and not gpus:
        raise BadSetting(
            f"{gpu_layers} layers cannot go to a GPU: llama.cpp has none to use here",
            hint="leave the number of GPU layers out, or see `localspec doctor` for a build that has one",
        )
    return () if gpu_layers == 0 else gpus


def model_params(
    gpus: Sequence[devices.Device],
    gpu_layers: int | None,
    split: Sequence[float],
    cpu_moe: int,
    mmap: bool | None,
) -> tuple[Any, tuple[Any, ...]]:
    """The parameters, and what they point into."""
    params = lib.llama_model_default_params()
    params.use_extra_bufts = health().extra_buffers
    if mmap is not None:
        params.load_mode = lib.LLAMA_LOAD_MODE_MMAP if mmap else lib.LLAMA_LOAD_MODE_NONE
    params.split_mode = lib.LLAMA_SPLIT_MODE_LAYER if len(gpus) > 1 else lib.LLAMA_SPLIT_MODE_NONE
    if not gpus:
        params.n_gpu_layers = 0
        params.main_gpu = -1  # not even for prompts, so that no memory of the GPU is taken
        return params, ()
    params.n_gpu_layers = -1 if gpu_layers is None else gpu_layers
    handles = (ctypes.c_void_p * (len(gpus) + 1))(*map(devices.handle_of, gpus))
    shares = (ctypes.c_float * lib.llama_max_devices())(*split)
    layers = "|".join(map(str, range(cpu_moe)))
    overrides = (_Override * 2)(_Override(rf"blk\.({layers}){_EXPERTS}".encode(), _cpu_buffers()))
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    params.tensor_split = shares
    if cpu_moe:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return params, (handles, shares, overrides)
