"""How a model would be loaded, and what that takes of each device."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any, Protocol

from localspec.gguf.heads import DraftKind

HOST = "CPU"
CHECKPOINT_SHARE = 0.1  # of the bytes of a model's weights: what its checkpoints may take of the CPU's memory


@dataclass(frozen=True, slots=True)
class Load:
    """How a model would be loaded."""

    length: int  # context, in tokens
    kv_type: str = "f16"
    devices: tuple[str, ...] | None = None  # none of them a GPU: the CPU; None: the default GPU
    gpu_layers: int | None = None  # from the last, the output counts as one; None: all
    split: tuple[float, ...] = ()  # shares of several devices in these layers
    cpu_moe: int = 0  # layers, from the first, whose experts stay on the CPU
    flash_attn: str = "auto"
    rows: int = 1  # of logits that one decode may ask for
    snapshots: int = 0  # of a recurrent state, so that tokens can be taken back
    prediction: bool = False  # with its prediction layers
    kind: DraftKind = DraftKind.MODEL

    @property
    def place(self) -> dict[str, Any]:
        """What a Model takes of it."""
        names = ("devices", "gpu_layers", "split", "cpu_moe", "prediction")
        return {name: getattr(self, name) for name in names}

    @property
    def context(self) -> dict[str, Any]:
        """What a Context takes of it."""
        return {**self.head_context, "rows_max": self.rows, "snapshots": self.snapshots}

    @property
    def head_context(self) -> dict[str, Any]:
        """What a HeadContext takes of it."""
        return {
            "length": self.length,
            "kv_type_k": self.kv_type,
            "kv_type_v": self.kv_type,
            "flash_attn": self.flash_attn,
        }


def layers_on(load: Load, total: int) -> tuple[int, ...]:
    """How many of a model's layers llama.cpp puts on each device, the output being one of `total`."""
    layers = total if load.gpu_layers is None else min(load.gpu_layers, total)
    shares = load.split or (1,) * len(load.devices or ())
    ends = [ceil(layers * reached / sum(shares)) for reached in accumulate(shares)]
    return tuple(end - start for start, end in pairwise([0, *ends]))


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on each device."""

    weights: Mapping[str, int]
    cache: Mapping[str, int]
    compute: Mapping[str, int]
    flash_attention: bool = True  # whether every layer's device can do it
    checkpoints: int = 0  # bytes of the CPU's memory, whatever the devices

    @property
    def by_device(self) -> dict[str, int]:
        parts = (self.weights, self.cache, self.compute, {HOST: self.checkpoints} if self.checkpoints else {})
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: sum(part.get(name, 0) for part in parts) for name in names}


class Sizes(Protocol):
    """What a memory plan asks about a model."""

    @property
    def name(self) -> str: ...

    @property
    def layers(self) -> int:
        """Transformer blocks; the output, which a GPU can hold as well, comes on top."""
        ...

    @property
    def has_experts(self) -> bool: ...

    @property
    def trained_context(self) -> int | None:
        """Tokens that the model was trained for; None where its file does not say."""
        ...

    @property
    def kind(self) -> DraftKind:
        """A head has as long a context as its target."""
        ...

    @property
    def inside(self) -> bool:
        """Whether it is a head inside its target's file."""
        ...

    def needs(self, load: Load) -> Needs:
        """Raises BadModelFile for a model that llama.cpp refuses, BackendFailure for a load that it cannot do."""
        ...
