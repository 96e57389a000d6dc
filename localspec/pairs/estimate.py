"""About how much memory a known pair needs and where it would fit, from the registry alone: for lists.

The plan of `localspec info` has llama.cpp's own numbers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from localspec.errors import NotEnoughMemory
from localspec.gguf.header import parts_of
from localspec.gguf.heads import DraftKind
from localspec.memory.devices import DeviceMemory
from localspec.memory.needs import CHECKPOINT_SHARE, HOST, Load, MemoryWishes, Needs, layers_on
from localspec.memory.plan import Plan, plan
from localspec.memory.ways import DEFAULT_CONTEXT
from localspec.pairs.registry import HubFile, ModelFile, Pair, PairKind
from localspec.pairs.store import distinct

_KINDS = {
    PairKind.SIMPLE: DraftKind.MODEL,
    PairKind.MTP: DraftKind.MTP,
    PairKind.EAGLE3: DraftKind.EAGLE3,
    PairKind.DFLASH: DraftKind.DFLASH,
    PairKind.LOOKUP: DraftKind.MODEL,
}
_LAYERS = 32  # of a model whose number of layers is not known
_SMALLER = {"q8_0": 34 / 64}  # caches than F16: 34 bytes for 32 values
_BUFFERS = 80_000_000  # bytes of compute buffers on a GPU, and
_BUFFER_SHARE = 200  # one part of so many of the weights on top


class Fit(StrEnum):
    """Where a pair would fit."""

    GPU = "gpu"
    PART = "part"  # some of the target's layers, or its draft, not on a GPU
    CPU = "cpu"  # into main memory only
    NO = "no"


def file_bytes(pair: Pair) -> int:
    return sum(_bytes(file) for file in distinct(pair.files))


def memory_needed(pair: Pair) -> int:
    """Weights, caches at the default context, and buffers, in bytes; unknown caches count nothing."""
    boundless = [DeviceMemory(HOST, "cpu", 1 << 50, 1 << 50)]
    context = min(pair.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    return sum(need.total for need in estimated_plan(pair, boundless, context).needs)


def fit(pair: Pair, devices: Sequence[DeviceMemory]) -> Fit:
    try:
        found = estimated_plan(pair, devices)
    except NotEnoughMemory:
        return Fit.NO
    if not found.target.devices:
        return Fit.CPU
    whole = found.target.gpu_layers is None and (found.draft is not None or pair.draft is None)
    return Fit.GPU if whole else Fit.PART


def estimated_plan(pair: Pair, devices: Sequence[DeviceMemory], context: int | None = None) -> Plan:
    """The memory plan of a pair, with a context of so many tokens or as fits. Raises NotEnoughMemory."""
    draft = EstimatedSizes(pair.draft, kind=_KINDS[pair.kind]) if pair.draft else None
    return plan(EstimatedSizes(pair.target, pair.context), draft, devices, MemoryWishes(context=context))


@dataclass(frozen=True, slots=True)
class EstimatedSizes:
    """A model's Sizes, from what the registry says about its file."""

    file: ModelFile
    trained_context: int | None = None
    has_experts: bool = False
    kind: DraftKind = DraftKind.MODEL
    inside: bool = False

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def layers(self) -> int:
        return self.file.facts.layers or _LAYERS

    def needs(self, load: Load) -> Needs:
        """Layers are taken to be alike; compute buffers are about what llama.cpp plans with flash attention."""
        facts, size = self.file.facts, _bytes(self.file)
        counts = layers_on(load, self.layers + 1)
        on_gpus = [gpu for gpu, count in zip(load.devices or (), counts, strict=True) for _ in range(count)]
        *blocks, output = [HOST] * (self.layers + 1 - len(on_gpus)) + on_gpus
        embedding = facts.embedding_bytes or 0
        block = (size - embedding - (facts.output_bytes or 0)) // self.layers
        token = (facts.kv_bytes_per_token or 0) * _SMALLER.get(load.kv_type, 1.0) / self.layers
        held = window_cells(facts.window or load.length, load.length, on_gpu=bool(on_gpus))
        windowed = (facts.window_layers or 0) / self.layers
        weights, cache = Counter({HOST: embedding}), Counter[str]()
        for device in blocks:
            weights[device] += block
            cache[device] += int(token * (windowed * held + (1 - windowed) * load.length))
        if output != HOST or facts.output_bytes:
            weights[output] += facts.output_bytes or embedding
        buffers = min(size, _BUFFERS + size // _BUFFER_SHARE)
        compute = {HOST: buffers // 3} | {device: buffers for device in {*blocks, output} if device != HOST}
        checkpoints = int(CHECKPOINT_SHARE * size) if windowed and held < load.length else 0
        return Needs(weights, cache, compute, checkpoints=checkpoints)


def window_cells(window: int, length: int, *, on_gpu: bool) -> int:
    """Tokens in the cache of a layer with a sliding window: a chunk of a prompt more than the window, or all."""
    cells = ceil((window + (512 if on_gpu else 128)) / 256) * 256  # llama-kv-cache-iswa.cpp pads to 256
    return length if 2 * window >= length else min(cells, length)


def _bytes(file: ModelFile) -> int:
    if isinstance(file, HubFile):
        return file.all_bytes
    return sum(part.stat().st_size for part in parts_of(file.path) if part.is_file())
