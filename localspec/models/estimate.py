"""About how much memory a known pair needs and where it would fit, from the registry alone."""

from collections.abc import Sequence
from enum import StrEnum

from localspec.models.devices import DeviceMemory
from localspec.models.memory import DEFAULT_CONTEXT
from localspec.models.registry import ModelFile, Pair
from localspec.models.store import distinct, locate

_BUFFERS = 150_000_000  # bytes of compute buffers of a model, about; those of a tiny one are like its weights
_USABLE = 0.95  # of a GPU's memory: the rest is the driver's and the screen's


class Fit(StrEnum):
    """Where a pair would fit."""

    GPU = "gpu"
    CPU = "cpu"  # into main memory only
    NO = "no"


def file_bytes(pair: Pair) -> int:
    return sum(_bytes(file) for file in distinct(pair.files))


def memory_needed(pair: Pair) -> int:
    """Weights, caches at the default context, and buffers, in bytes; unknown caches count nothing.

    An estimate for lists; the plan of `localspec info` has llama.cpp's own numbers.
    """
    context = min(pair.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    return sum(
        (weights := _bytes(file)) + (file.facts.kv_bytes_per_token or 0) * context + min(_BUFFERS, weights)
        for file in pair.files
    )


def fit(needed: int, devices: Sequence[DeviceMemory]) -> Fit:
    if any(device.is_gpu and needed <= device.total * _USABLE for device in devices):
        return Fit.GPU
    return Fit.CPU if any(device.kind == "cpu" and needed <= device.free for device in devices) else Fit.NO


def _bytes(file: ModelFile) -> int:
    if file.bytes is not None:
        return file.bytes
    path = locate(file)
    return path.stat().st_size if path else 0
