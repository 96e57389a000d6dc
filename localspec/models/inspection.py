"""A pair before its download: facts, fit and memory plan from the headers; and a known draft for a target."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from localspec.errors import LocalspecError, NotEnoughMemory
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import Header
from localspec.gguf.matching import SharedTokens, check
from localspec.health.devices import Device
from localspec.models.memory import CHECKPOINT_SHARE, HOST, Load, MemoryWishes, Needs, Sizes, layers_on
from localspec.models.placement import DEFAULT_CONTEXT
from localspec.models.places import ModelFile, distinct
from localspec.models.plan import Plan, plan
from localspec.models.probe import plan_for
from localspec.models.registry import DEMO, Pair, all_pairs

SLOW_BYTES = 4e9  # of weights: an 8B model in four bits
_LAYERS = 32  # of a model whose number of layers is not known
_SMALLER_CACHES = {"q8_0": 34 / 64}  # caches than F16: 34 bytes for 32 values
_BUFFERS = 80_000_000  # bytes of compute buffers on a GPU, and
_BUFFER_SHARE = 200  # one 200th of the weights on top


class Fit(StrEnum):
    """The devices on which a pair would fit."""

    GPU = "gpu"
    PART = "part"  # some of the target's layers, or its draft, not on a GPU
    CPU = "cpu"  # into main memory only
    NO = "no"


def file_bytes(pair: Pair) -> int:
    return sum(file.all_bytes for file in distinct(pair.files))


def memory_needed(pair: Pair) -> int:
    """Weights, caches at the default context, and buffers, in bytes; unknown caches count nothing."""
    boundless = [Device(HOST, "cpu", 1 << 50, 1 << 50)]
    context = min(pair.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    return sum(need.total for need in estimated_plan(pair, boundless, MemoryWishes(context=context)).needs)


def fit(pair: Pair, devices: Sequence[Device]) -> Fit:
    try:
        found = estimated_plan(pair, devices, MemoryWishes())
    except NotEnoughMemory:
        return Fit.NO
    if not found.target.devices:
        return Fit.CPU
    whole = found.target.gpu_layers is None and (found.draft is not None or pair.draft is None)
    return Fit.GPU if whole else Fit.PART


def estimated_plan(pair: Pair, devices: Sequence[Device], wishes: MemoryWishes) -> Plan:
    """The memory plan of a pair by the facts in the registry. Raises NotEnoughMemory, BadSetting."""
    draft = estimated_sizes(pair.draft, kind=pair.kind) if pair.draft else None
    return plan(estimated_sizes(pair.target, pair.context), draft, devices, wishes)


def too_large(pair: Pair) -> str:
    """Why the draft can hardly make the target faster, by their sizes; "" for a smaller one."""
    if pair.draft is None or pair.draft.all_bytes < pair.target.all_bytes:
        return ""
    return "the draft is no smaller than the target, so drafting can hardly save time; choose a smaller one"


def slow_on_cpu(target: ModelFile) -> bool:
    """Whether a token reads so much of the target that a CPU writes slowly; a mixture of experts reads few."""
    return target.all_bytes > SLOW_BYTES and not target.header.of_model("expert_count")


def estimated_sizes(
    file: ModelFile,
    trained_context: int | None = None,
    kind: DraftKind = DraftKind.MODEL,
) -> Sizes:
    """A model by the facts in the registry."""
    layers = file.layers or _LAYERS
    return Sizes(file.name, layers, lambda load: _needs(file, layers, load), trained_context, kind=kind)


def _needs(facts: ModelFile, layers: int, load: Load) -> Needs:
    """All layers count alike; compute buffers are about llama.cpp's with flash attention."""
    size, counts = facts.all_bytes, layers_on(load, layers + 1)
    on_gpus = [gpu for gpu, count in zip(load.devices or (), counts, strict=True) for _ in range(count)]
    *blocks, output = [HOST] * (layers + 1 - len(on_gpus)) + on_gpus
    embedding = facts.embedding_bytes or 0
    block = (size - embedding - (facts.output_bytes or 0)) // layers
    token = (facts.kv_bytes_per_token or 0) * _SMALLER_CACHES.get(load.kv_type, 1.0) / layers
    # llama-kv-cache-iswa.cpp: a sliding window holds a chunk of a prompt more, padded to 256, or all.
    window = facts.window or load.length
    cells = ceil((window + (512 if on_gpus else 128)) / 256) * 256
    held = load.length if 2 * window >= load.length else min(cells, load.length)
    windowed = (facts.window_layers or 0) / layers
    weights, cache = Counter({HOST: embedding}), Counter[str]()
    for device in blocks:
        weights[device] += block
        cache[device] += load.lanes * int(token * (windowed * held + (1 - windowed) * load.length))
    if output != HOST or facts.output_bytes:
        weights[output] += facts.output_bytes or embedding
    buffers = min(size, _BUFFERS + size // _BUFFER_SHARE)
    compute = {HOST: buffers // 3} | {device: buffers for device in {*blocks, output} if device != HOST}
    checkpoints = int(CHECKPOINT_SHARE * size) if windowed and held < load.length else 0
    return Needs(weights, cache, compute, checkpoints=checkpoints)


@dataclass(frozen=True, slots=True)
class Inspection:
    """A pair, judged."""

    plan: Plan | None
    problem: LocalspecError | None = None  # why the pair cannot run here
    shared: SharedTokens | None = None  # by a draft of another vocabulary


def inspect(pair: Pair, wishes: MemoryWishes) -> Inspection:
    """Judge a pair by its headers and this machine."""
    shared = None
    try:
        shared = pair.check()
        return Inspection(plan_for(pair, wishes), None, shared)
    except LocalspecError as error:
        return Inspection(None, error, shared)


_SIZE = re.compile(r"[-_ ]?(?:e|a)?\d+(?:\.\d+)?b\b", re.IGNORECASE)
_MOST_ASKED = 3  # headers that are read over the network
_SMALLER = 3  # times, at least, that a draft has to be


def suggested_draft(name: str, target: Header) -> ModelFile | None:
    """A draft of the registry with the target's vocabulary, by its header; `name`: of the target's file."""
    asked = 0  # headers of a few are read over the network
    for file in _candidates(name):
        if file.all_bytes * _SMALLER <= target.file_bytes and (file.path or asked < _MOST_ASKED):
            asked += not file.path
            with suppress(LocalspecError):
                if check([target, file.header]) is None:
                    return file
    return None


def _candidates(name: str) -> Iterator[ModelFile]:
    """Drafts of pairs whose target is of this family, the largest first; then all that are here."""
    pairs = [pair for pair in all_pairs() if pair.name != DEMO]
    family = _family(name)
    related = [pair.draft for pair in pairs if pair.draft and family and _family(pair.target.name) == family]
    here = [pair.draft for pair in pairs if pair.draft and pair.draft.path]
    found: list[ModelFile] = [*sorted(related, key=lambda file: -file.bytes), *here]
    yield from (file for file in distinct(found) if file.repo)


def _family(name: str) -> str:
    """The part of a file's name before the size; "" for a name without one."""
    found = _SIZE.search(name)
    return name[: found.start()].lower().removeprefix("meta-") if found else ""
