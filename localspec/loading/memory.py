"""The user's choices for a load, and the bytes of a load on each device."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

from localspec.errors import BadSetting
from localspec.gguf.facts import DraftKind
from localspec.llama.load import Load
from localspec.options import MOST_FACTOR

AUTO_PARALLEL = 2  # number of replies at once for parallel="auto", if memory has room for their KV caches


@dataclass(frozen=True, slots=True)
class LoadChoices:
    """The user's choices for a load; None leaves a choice to the memory plan. Most are options with the same names."""

    context_length: int | None = None  # in tokens
    gpu_layers: int | None = None
    kv_type: str = "f16"  # type of the target's KV cache
    devices: tuple[str, ...] = ()  # the target's devices
    split: tuple[float, ...] = ()  # each GPU's share of the target's layers
    cpu_moe: int | None = None
    flash_attn: str = "auto"
    no_flash: tuple[str, ...] = ()  # devices whose driver crashes with flash attention
    draft_device: str | None = None
    ignore_memory: bool = False  # whether to load a pair that does not fit into memory
    rpc: str = ""  # addresses of RPC servers
    threads: int | None = None  # number of CPU threads, also while attention is measured
    spare_cores: int = 0  # number of CPU cores to leave free, if `threads` is None
    mmap: bool | None = None
    parallel: int = 1  # number of replies at once
    more_parallel: int = 1  # used instead of `parallel` if the target is on GPUs with room for all KV caches
    speculate: bool = True
    cache_gb: float = 8  # limit of prompt caches on disk
    cache: str = "conversations"  # prompt caches to store on disk: only those of "conversations", or "all"
    read_ahead: bool = True
    owner: str = ""  # loads with the same owner share prompt caches

    @classmethod
    def of(cls, options: Mapping[str, Any], **others: object) -> "LoadChoices":
        """Parse options of a load. `others`: fields that are no options."""
        same = {name: options[name] for name in cls.__slots__ if options.get(name) not in (None, "")}
        if options.get("parallel") == "auto":
            same |= {"parallel": 1, "more_parallel": AUTO_PARALLEL}
        devices = tuple(filter(None, map(str.strip, options.get("device", "").split(","))))
        return cls(**same | {"devices": devices, "split": _shares(options.get("split", ""))} | others)


def _shares(text: str) -> tuple[float, ...]:
    if not text.strip():
        return ()
    try:
        shares = tuple(map(float, text.split(",")))
    except ValueError:
        shares = ()
    if not any(shares) or not all(0 <= share <= MOST_FACTOR for share in shares):
        raise BadSetting(
            f"{text} is not a valid split over GPUs", hint="give a share for each GPU, as in --split 3,1"
        )
    return shares


HOST = "CPU"
WIDEST_BATCH = 64  # maximum tokens in a verify batch: the newest token and all draft tokens
SNAPSHOTS = 3  # maximum draft tokens of a recurrent target: each draft token needs a copy of the state


def layers_on(load: Load, total: int) -> tuple[int, ...]:
    """Return how many layers llama.cpp puts on each GPU; the output counts as one of the `total` layers."""
    layers = total if load.gpu_layers is None else min(load.gpu_layers, total)
    shares = load.split or (1,) * len(load.devices or ())
    ends = [ceil(layers * reached / sum(shares)) for reached in accumulate(shares)]
    return tuple(end - start for start, end in pairwise([0, *ends]))


@dataclass(frozen=True, slots=True)
class Needs:
    weights: Mapping[str, int]  # bytes by device
    cache: Mapping[str, int]  # bytes of KV caches; for the CPU, also bytes of checkpoints
    compute: Mapping[str, int]
    flash_attention: bool = True  # whether the devices of all layers support flash attention

    @property
    def by_device(self) -> Mapping[str, int]:
        return sum(map(Counter, (self.weights, self.cache, self.compute)), Counter[str]())


@dataclass(frozen=True, slots=True)
class Experts:
    count: int  # number of experts in a layer
    used: int  # number of experts of a layer that one row uses
    share: float  # bytes of all experts / bytes of the model

    def distinct(self, rows: int) -> float:
        """Estimate how many different experts of a layer a pass of `rows` rows reads."""
        different = 1 + 0.7 * (rows - 1)  # a row shares 0.3 of its experts with the row before
        missed: float = (1 - self.used / self.count) ** different  # chance that no row chooses a given expert
        return self.count * (1 - missed)


@dataclass(frozen=True, slots=True)
class Sizes:
    name: str
    layers: int  # number of transformer blocks, without the output
    needs: Callable[[Load], Needs]  # raises BadModelFile, or BackendFailure for an impossible load
    trained_context: int | None = None  # in tokens
    experts: Experts | None = None  # None for a model without experts
    kind: DraftKind = DraftKind.MODEL
    inside: bool = False  # whether this is a head inside its target's file
    head_bytes: int = 0  # for a head inside its target's file: bytes of weights that a pass reads
