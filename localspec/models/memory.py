"""What a user asks of the memory plan, how a model would be loaded, and the bytes that this takes on each device."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

from localspec.errors import BadSetting
from localspec.gguf.facts import DraftKind
from localspec.options import MOST_DEPTH

AUTO_PARALLEL = 2  # replies at once, where nobody says how many and there is room


@dataclass(frozen=True, slots=True)
class MemoryWishes:
    """The user's options for the plan; None: the plan decides."""

    context: int | None = None  # tokens
    gpu_layers: int | None = None
    kv_type: str = "f16"  # of the target
    devices: tuple[str, ...] = ()  # of the target
    split: tuple[float, ...] = ()  # shares of the GPUs in the target's layers
    cpu_moe: int | None = None
    flash_attn: str = "auto"
    no_flash: tuple[str, ...] = ()  # devices whose driver dies of it
    draft_device: str | None = None
    ignore_memory: bool = False  # load although it does not fit
    parallel: int = 1  # replies at once
    more_parallel: int = 1  # as many, where all of the target is on GPUs and nothing else suffers


def wishes_of(options: Mapping[str, Any]) -> MemoryWishes:
    """The options of a load that the plan uses."""
    parallel = options.get("parallel") or 1
    return MemoryWishes(
        context=options.get("context_length"),
        gpu_layers=options.get("gpu_layers"),
        kv_type=options.get("kv_type") or "f16",
        devices=tuple(filter(None, map(str.strip, options.get("device", "").split(",")))),
        split=_shares(options.get("split", "")),
        cpu_moe=options.get("cpu_moe"),
        flash_attn=options.get("flash_attn", "auto"),
        draft_device=options.get("draft_device") or None,
        ignore_memory=options.get("ignore_memory", False),
        parallel=1 if parallel == "auto" else parallel,
        more_parallel=AUTO_PARALLEL if parallel == "auto" else 1,
    )


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
WIDEST_BATCH = 1 + MOST_DEPTH  # tokens in a verify batch: the newest one and the draft; buffers grow with it
SNAPSHOTS = 3  # of a recurrent target, so the most draft tokens: each is a whole state
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
    steps_back: bool = (
        False  # whether a recurrent state is kept twice: a draft's, of the text and of the drafts
    )
    prediction: bool = False  # with its prediction layers
    kind: DraftKind = DraftKind.MODEL
    lanes: int = 1  # replies at once, each with a cache of this length
    cuts: bool = False  # whether a GPU may choose the largest logits

    @property
    def place(self) -> dict[str, Any]:
        """Arguments of a Model."""
        names = ("devices", "gpu_layers", "split", "cpu_moe", "prediction")
        return {name: getattr(self, name) for name in names}

    @property
    def context(self) -> dict[str, Any]:
        """Arguments of a Context."""
        return {
            **self.head_context,
            "rows_max": self.rows,
            "snapshots": self.snapshots,
            "steps_back": self.steps_back,
            "lanes": self.lanes,
            "cuts": self.cuts,
        }

    @property
    def head_context(self) -> dict[str, Any]:
        """Arguments of a HeadContext."""
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model, for the memory plan."""

    name: str
    layers: int  # transformer blocks; the output, which a GPU can hold as well, comes on top
    needs: Callable[[Load], Needs]  # raises BadModelFile, and BackendFailure for a load that cannot be done
    trained_context: int | None = None  # tokens
    has_experts: bool = False
    kind: DraftKind = DraftKind.MODEL  # a head has as long a context as its target
    inside: bool = False  # a head inside its target's file
