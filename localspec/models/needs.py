"""How a model would be loaded, and what that takes of each device."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """How a model would be loaded."""

    length: int  # context, in tokens
    kv_type: str = "f16"
    gpu_layers: int | None = None  # None: all, where there is a GPU
    device: str | None = None  # None: the default GPU, or the CPU where there is none
    rows: int = 1  # of logits that one decode may ask for
    snapshots: int = 0  # of a recurrent state, so that tokens can be taken back


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on each device."""

    weights: Mapping[str, int]
    cache: Mapping[str, int]
    compute: Mapping[str, int]

    @property
    def by_device(self) -> dict[str, int]:
        parts = (self.weights, self.cache, self.compute)
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: sum(part.get(name, 0) for part in parts) for name in names}
