"""What the user asked of the plan, how a model would be loaded, what that takes, and what devices have room for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any, Protocol

from localspec.display import size_text
from localspec.errors import BadSetting, NotEnoughMemory
from localspec.gguf.heads import DraftKind
from localspec.memory.devices import DeviceMemory
from localspec.settings import Settings


@dataclass(frozen=True, slots=True)
class MemoryWishes:
    """What the user asked for; None or nothing: the plan decides."""

    context: int | None = None  # tokens
    gpu_layers: int | None = None
    kv_type: str = "f16"  # of the target
    devices: tuple[str, ...] = ()  # of the target
    split: tuple[float, ...] = ()  # shares of the GPUs in the target's layers
    cpu_moe: int | None = None
    flash_attn: str = "auto"
    no_flash: tuple[str, ...] = ()  # devices whose driver dies of it
    draft_device: str | None = None
    draft: bool = True
    target_rows: int = 33  # of logits in one decode; compute buffers grow with it
    draft_rows: int = 1
    ignore_memory: bool = False  # load although it does not fit
    snapshots: int = 3  # of a recurrent target, so the most draft tokens: each is a whole state


def wishes_of(settings: Settings, draft: bool = True) -> MemoryWishes:
    """The settings that the plan heeds. Raises BadSetting for numbers that cannot be."""
    check_at_least("context_length", settings.context, 16)
    check_at_least("gpu_layers", settings.gpu_layers, 0)
    check_at_least("cpu_moe", settings.cpu_moe, 0)
    return MemoryWishes(
        context=settings.context,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv_type or "f16",
        devices=tuple(filter(None, map(str.strip, (settings.device or "").split(",")))),
        split=_shares(settings.split or ""),
        cpu_moe=settings.cpu_moe,
        flash_attn=settings.flash_attn or "auto",
        draft_device=settings.draft_device or None,
        draft=draft,
        ignore_memory=bool(settings.ignore_memory),
    )


def check_at_least(name: str, value: int | None, least: int) -> None:
    """Raises BadSetting for a number below the least; None was not given."""
    if value is not None and value < least:
        raise BadSetting(f"{name} is {value}", hint=f"give a whole number of at least {least}")


def _shares(text: str) -> tuple[float, ...]:
    """The numbers of a text like 3,1."""
    if not text.strip():
        return ()
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if not any(found) or not all(math.isfinite(share) and share >= 0 for share in found):
        raise BadSetting(f"{text} is no split over GPUs", hint="give a share for each, as in --split 3,1")
    return found


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


_MARGIN = 0.03  # of a device's memory: drivers, fragmentation, the program itself
_LEAST_MARGIN = 200_000_000  # bytes
_LEAST_GPU_MARGIN = 512_000_000  # kernels, workspaces and pools; llama.cpp aborts where they do not fit


class Room:
    """The memory of all devices, less a margin; what shares the CPU's memory is counted with the CPU's."""

    def __init__(self, devices: Sequence[DeviceMemory]) -> None:
        self._devices = {device.name: device for device in devices}
        self._cpu = next((device.name for device in devices if device.kind == "cpu"), "")

    def spare(self, name: str, needs: Sequence[Needs]) -> int:
        """Bytes that are left on a device; negative where it is too small."""
        device = self._devices.get(name)
        if device is None:
            return -_on((name,), needs)
        left = _usable(device) - _on((name,), needs)
        if not device.shared and name != self._cpu:
            return left
        return min(left, _usable(self._devices[self._cpu]) - _on(self.of_cpu, needs))

    def holds(self, needs: Sequence[Needs]) -> bool:
        return all(self.spare(name, needs) >= 0 for need in needs for name in need.by_device)

    @property
    def of_cpu(self) -> tuple[str, ...]:
        """The devices that compute in the CPU's memory."""
        return tuple(d.name for d in self._devices.values() if d.shared or d.name == self._cpu)

    def spare_on_cpu(self, needs: Sequence[Needs]) -> int:
        """Bytes that are left of the CPU's memory."""
        return self.spare(self._cpu, needs)

    def cpu_holds(self, needs: Sequence[Needs]) -> bool:
        return self.spare_on_cpu(needs) >= 0

    def too_small_for(self, needs: Sequence[Needs]) -> NotEnoughMemory:
        """The error that names the device that lacks most."""
        names = dict.fromkeys(name for need in needs for name in need.by_device)
        worst = min(names, key=lambda name: self.spare(name, needs))
        free = self._devices[worst].free if worst in self._devices else 0
        return NotEnoughMemory(
            f"the target alone needs {size_text(_on((worst,), needs))} on {worst}, "
            f"and {size_text(free)} are free",
            hint="choose a smaller pair or quantisation, or a shorter context (--context), "
            "or load it anyway (--ignore-memory)",
        )


def _usable(device: DeviceMemory) -> int:
    least = _LEAST_GPU_MARGIN if device.is_gpu and not device.shared else _LEAST_MARGIN
    return device.free - max(least, int(device.total * _MARGIN))


def _on(names: Sequence[str], needs: Sequence[Needs]) -> int:
    return sum(need.by_device.get(name, 0) for need in needs for name in names)
