"""Describe pairs, even before a download: a list, whether they fit, a memory plan."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import ceil

from localspec.errors import NotEnoughMemory
from localspec.files import read_numbers, remember_number
from localspec.gguf.facts import DraftKind
from localspec.gguf.facts import trained_context as trained_in
from localspec.gguf.header import Header
from localspec.llama.load import CHECKPOINT_SHARE, Load
from localspec.loading.memory import HOST, LoadChoices, Needs, Sizes, layers_on
from localspec.loading.placement import DEFAULT_CONTEXT
from localspec.loading.plan import Plan, experts_of, head_bytes, plan, plan_for, weights_of
from localspec.machine.devices import Device, last_devices
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair, all_pairs
from localspec.options import data_dir

SLOW_BYTES = 4e9  # a CPU decodes slowly with more bytes of weights, for example an 8B model in four bits
_SMALLER_CACHES = {"q8_0": 34 / 64}  # bytes relative to F16: 32 values take 34 bytes instead of 64
# A GPU's compute buffers take about _BUFFERS bytes, plus the bytes of the weights / _BUFFER_SHARE.
_BUFFERS, _BUFFER_SHARE = 80_000_000, 200
# The recommended pairs, largest first: see docs/which-pair.md.
LADDER = ("qwen3-32b+0.6b", "qwen3-14b+0.6b", "qwen3-8b+0.6b", "qwen3-4b+0.6b")


class Fit(StrEnum):
    GPU = "gpu"
    PART = "part"  # some of the target's layers are on the CPU, or the draft is not loaded
    CPU = "cpu"  # the whole target is on the CPU
    NO = "no"  # the memory is too small


def memory_needed(pair: Pair) -> int:
    """Estimate the bytes of a pair's weights, buffers and KV caches at the default context."""
    boundless = [Device(HOST, "cpu", 1 << 50, 1 << 50)]
    context = min(pair.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    return sum(
        need.total for need in estimated_plan(pair, boundless, LoadChoices(context_length=context)).needs
    )


def fit(pair: Pair, devices: Sequence[Device]) -> Fit:
    try:
        found = estimated_plan(pair, devices, LoadChoices())
    except NotEnoughMemory:
        return Fit.NO
    if not found.target.devices:
        return Fit.CPU
    whole = found.target.gpu_layers is None and (found.draft is not None or pair.draft is None)
    return Fit.GPU if whole else Fit.PART


def estimated_plan(
    pair: Pair, devices: Sequence[Device], choices: LoadChoices, *, read: bool = False
) -> Plan:
    """Plan a pair from the registry's facts. `read`: whether to read headers too. Raises NotEnoughMemory."""
    target = estimated_sizes(pair.target, pair.context, read=read)
    draft = estimated_sizes(pair.draft, kind=pair.kind, read=read) if pair.draft else None
    if read and draft is None and pair.drafter is not DraftKind.LOOKUP:
        nothing = Needs({}, {}, {})  # a head's KV cache is too small to count
        head = head_bytes(pair.target.header)
        draft = replace(target, kind=DraftKind.MTP, needs=lambda load: nothing, inside=True, head_bytes=head)
    return plan(target, draft, devices, choices)


def planned(pair: Pair, choices: LoadChoices) -> Plan:
    """Check a pair's headers, and plan its memory. Raises LocalspecError if the pair cannot run here."""
    if pair.on_disk:
        return plan_for(pair, choices)
    shared = pair.check()
    return replace(estimated_plan(pair, last_devices(), choices, read=True), shared=shared)


def estimated_sizes(
    file: ModelFile,
    trained_context: int | None = None,
    kind: DraftKind = DraftKind.MODEL,
    *,
    read: bool = False,
) -> Sizes:
    """Estimate the sizes of a model from the registry's facts. `read`: whether to read its header too."""
    header, facts = file.header if read else None, file
    if header and not file.layers:  # layers with a sliding window are counted like other layers
        layers, heads = header.of_model("block_count"), header.of_model("attention.head_count")
        own = header.get(f"{header.architecture}.attention.head_count_kv")
        kv_heads = sum(map(int, own)) if isinstance(own, tuple) else int(own or heads) * layers
        width = header.of_model("embedding_length") // max(heads, 1)
        widths = sum(header.of_model(f"attention.{part}_length") or width for part in ("key", "value"))
        facts = replace(file, layers=layers, kv_bytes_per_token=2 * kv_heads * widths)
    layers, experts = facts.layers or 32, experts_of(header) if header else None
    needs = partial(_needs, facts, layers, header)
    return Sizes(
        file.name, layers, needs, trained_context or (trained_in(header) if header else None), experts, kind
    )


def _needs(facts: ModelFile, layers: int, header: Header | None, load: Load) -> Needs:
    """Estimate the bytes of a load, as if all layers were equal and flash attention were on."""
    size, counts = facts.all_bytes, layers_on(load, layers + 1)
    on_gpus = [gpu for gpu, count in zip(load.devices or (), counts, strict=True) for _ in range(count)]
    *blocks, output = [HOST] * (layers + 1 - len(on_gpus)) + on_gpus
    embedding = facts.embedding_bytes or 0
    block = (size - embedding - (facts.output_bytes or 0)) // layers
    token = (facts.kv_bytes_per_token or 0) * _SMALLER_CACHES.get(load.kv_type, 1.0) / layers
    # The cache of a sliding window has room for a chunk of the prompt, too, as in llama-kv-cache-iswa.cpp.
    window = facts.window or load.length
    cells = ceil((window + (512 if on_gpus else 128)) / 256) * 256
    held = load.length if 2 * window >= load.length else min(cells, load.length)
    windowed = (facts.window_layers or 0) / layers
    weights, cache = Counter({HOST: embedding}), Counter[str]()
    for device in blocks:
        weights[device] += block
        cache[device] += load.slots * int(token * (windowed * held + (1 - windowed) * load.length))
    if output != HOST or facts.output_bytes:
        weights[output] += facts.output_bytes or embedding
    if header:
        weights = Counter(weights_of(header, [*blocks, output], load.cpu_moe, load.prediction))
    buffers = min(size, _BUFFERS + size // _BUFFER_SHARE)
    compute = {HOST: buffers // 3} | {device: buffers for device in {*blocks, output} if device != HOST}
    if windowed and window < load.length:
        cache[HOST] += int(CHECKPOINT_SHARE * size)
    return Needs(weights, cache, compute)


@dataclass(frozen=True, slots=True)
class PairRow:
    name: str
    use: str  # purpose of the pair
    size_bytes: int  # bytes of all files
    memory_bytes: int  # estimated by memory_needed
    on_disk: bool
    fits: Fit
    speedup: float | None = None  # speed with drafting / plain speed, measured on this machine
    published: str = ""  # speeds that others measured
    recommended: bool = False  # whether to suggest the pair for chats on this machine
    trouble: str = ""  # why another program's model cannot be loaded


def listing() -> tuple[PairRow, ...]:
    devices, speedups, order = last_devices(), measured_speedups(), list(Fit)
    pairs = {pair: fit(pair, devices) for pair in all_pairs()}
    best = recommended({pair.name: fits for pair, fits in pairs.items()})
    rows = (
        PairRow(
            *(pair.name, pair.found.about if pair.found else pair.use, pair.file_bytes),
            *(memory_needed(pair), pair.on_disk, fits),
            speedup=speedups.get(pair.name),
            published=" · ".join(pair.published),
            recommended=pair.name == best,
            trouble=pair.found.why_not if pair.found else "",
        )
        for pair, fits in pairs.items()
    )
    return tuple(sorted(rows, key=lambda row: (not row.on_disk, not row.recommended, order.index(row.fits))))


def recommended(fits: Mapping[str, Fit]) -> str:
    """Return the largest LADDER pair that fits on the GPU; else the smallest, or "" if the smallest cannot run."""
    smallest = LADDER[-1] if fits.get(LADDER[-1], Fit.NO) is not Fit.NO else ""
    return next((name for name in LADDER if fits.get(name) is Fit.GPU), smallest)


def measured_speedups() -> dict[str, float]:
    return read_numbers(data_dir() / "speedups.json", most=1e6)


def remember_speedup(name: str, speedup: float) -> None:
    remember_number(data_dir() / "speedups.json", name, round(speedup, 3))
