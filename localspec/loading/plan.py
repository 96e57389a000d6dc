"""Plan a pair's memory. llama.cpp measures what each file needs, without loading weights; the result is stored."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import options
from localspec.display import size_text
from localspec.errors import BadSetting
from localspec.files import file_of, recalled, remember
from localspec.gguf.facts import DraftKind, trained_context, trunk_layers
from localspec.gguf.header import Header, header_of_part
from localspec.gguf.matching import SharedTokens
from localspec.llama.load import CHECKPOINT_SHARE, Load
from localspec.loading.attention import Attention, attention_of, measures_attention
from localspec.loading.memory import HOST, Experts, LoadChoices, Needs, Sizes
from localspec.loading.placement import SHORTEST_CONTEXT, MemoryBudget, Placement, Placements
from localspec.machine.devices import Device, remember_devices, with_host
from localspec.machine.llama_build import installed_build
from localspec.models.local_models import ModelFile, identity
from localspec.models.projector import ROWS_AT_ONCE, kind_of, memory_of
from localspec.models.registry import Pair
from localspec.stopping import Closing

if TYPE_CHECKING:  # imported only for types, because this import loads llama.cpp
    from localspec.llama.measuring import Measurer


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    device: str
    weights: int
    cache: int
    compute: int
    free: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute


@dataclass(frozen=True, slots=True)
class Plan:
    target: Load
    draft: Load | None  # None: no draft is loaded
    needs: tuple[DeviceNeed, ...]
    lines: tuple[str, ...]  # notices about surprising choices, with their reasons
    shared: SharedTokens | None = None  # None if target and draft have the same vocabulary
    attention: Attention | None = None  # the target's attention; None if it was not measured


def plan(target: Sizes, draft: Sizes | None, devices: Sequence[Device], choices: LoadChoices) -> Plan:
    """Return a plan with the first placement that fits into memory; with `ignore_memory`, the first of all."""
    choices = _with_known_names(choices, devices)
    if choices.cpu_moe and not target.experts:
        raise BadSetting(f"{target.name} has no experts to keep on the CPU", hint="leave --cpu-moe out")
    asked = choices.parallel
    if draft is not None and draft.kind is DraftKind.ASSISTANT:
        choices = replace(choices, parallel=1, more_parallel=1)
    budget = MemoryBudget(devices)
    placements = Placements(target, draft, devices, choices, budget)
    for placement in placements:
        if budget.holds(placement.needs):
            break
        if choices.ignore_memory:
            ignored = f"The memory plan is ignored: {budget.too_small_for(placement.needs)}."
            return Plan(placement.target, placement.draft, _device_needs(placement, devices), (ignored,))
    else:
        raise budget.too_small_for(placement.needs)
    gpus = placements.gpus or (HOST,)
    free = sum(device.free_bytes for device in devices if device.name in gpus)
    why = f"to fit into the {size_text(free)} that are free on {' and '.join(gpus)}"
    if placement.draft is not None and placement.target.spills and not choices.draft_device:
        alone = next((each for each in placements.alone() if budget.holds(each.needs)), None)
        if alone and alone.target.length >= min(placement.target.length, SHORTEST_CONTEXT):
            placement = min(placement, alone, key=placements.seconds_per_token)
    for better in (placements.longer, placements.more_at_once):
        placement = next((each for each in better(placement) if budget.holds(each.needs)), placement)
    lines = [*_lines(placement, target, draft, choices, placements.context, why)]
    if placement.target.slots == 1 < asked:
        lines.append(
            "Replies take turns, because the draft (a prediction head) can serve only one at a time."
        )
    return Plan(placement.target, placement.draft, _device_needs(placement, devices), tuple(lines))


def _with_known_names(choices: LoadChoices, devices: Sequence[Device]) -> LoadChoices:
    names = {device.name.lower(): device.name for device in devices}

    def known(name: str) -> str:
        if name.lower() not in names:
            install = "If a GPU is missing, `localspec doctor` shows how to install llama.cpp for it"
            hint = f"choose one of: {', '.join(names.values())}. {install}"
            raise BadSetting(f"there is no device called {name}", hint=hint)
        return names[name.lower()]

    beside = choices.draft_device and known(choices.draft_device)
    return replace(choices, devices=tuple(map(known, choices.devices)), draft_device=beside)


def _lines(
    placement: Placement, sizes: Sizes, wished: Sizes | None, asked: LoadChoices, context: int, why: str
) -> Iterator[str]:
    load, trained = placement.target, sizes.trained_context
    gpus, total = " and ".join(load.devices or ()), sizes.layers + 1
    if load.length < context:
        yield f"The context is {load.length:,} tokens instead of {context:,}, {why}."
    if trained and load.length > trained:
        yield (
            f"The context of {load.length:,} tokens is longer than the {trained:,} that {sizes.name} was trained "
            "for: beyond them its answers may get worse."
        )
    if load.cpu_moe and asked.cpu_moe is None:
        yield f"The experts of {load.cpu_moe} of the target's {sizes.layers} layers are on the CPU, {why}."
    if load.gpu_layers is not None and asked.gpu_layers is None:
        some = f"{load.gpu_layers} of the target's {total} layers are on {gpus}, the others"
        yield f"{some if load.gpu_layers else 'The target is'} on the CPU, {why}."
    if wished and placement.draft is None:
        name = "prediction head is not used" if wished.kind.is_head else "draft model is not loaded"
        yield f"The {name}, {why}; drafts come from the text alone."
    if placement.draft and not asked.draft_device and placement.target.devices:
        (device,) = placement.draft.devices or ("",)
        if device not in placement.target.devices:
            yield f"The draft is on {device}, because {gpus} has no room for it."
    if load.slots > 1:
        yield f"{load.slots} replies run at once, each with a context of {load.length:,} tokens of its own."


def _device_needs(placement: Placement, devices: Sequence[Device]) -> tuple[DeviceNeed, ...]:
    needs = []
    for device in devices:
        weights, cache, compute = (
            sum(getattr(need, part).get(device.name, 0) for need in placement.needs)
            for part in ("weights", "cache", "compute")
        )
        if weights or cache or compute:
            needs.append(DeviceNeed(device.name, weights, cache, compute, device.free_bytes))
    return tuple(needs)


_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch)?exps")


@dataclass(frozen=True, slots=True)
class _Buffers:
    """llama.cpp's measurement of a load: bytes by name of buffer, and the device of each layer."""

    cache: dict[str, float]
    compute: dict[str, float]
    layers: tuple[str, ...]
    flash: bool  # whether the device of every layer can do flash attention
    checkpoints: bool  # whether the cache needs checkpoints to roll back


class MemoryProbe(Closing):
    """The memory that model files need, by stored measurements. For a new one, llama.cpp is loaded."""

    def __init__(self, devices: Sequence[Device] | None = None) -> None:
        """`devices`: the devices that llama.cpp lists now; if None, get them from llama.cpp."""
        if devices is None:
            from localspec.llama.devices import devices as listed

            devices = listed()
        self._devices = tuple(devices)
        remember_devices(self._devices)
        self._measurer: Measurer | None = None
        self._remembered: dict[Path, _Buffers] = {}

    def needs(
        self,
        file: ModelFile,
        load: Load,
        adapters: Sequence[Header] = (),
        kind: DraftKind = DraftKind.MODEL,
        target: ModelFile | None = None,
    ) -> Needs:
        """Return the memory of a model; for a head, the memory that it adds to its `target`.

        Raises BadModelFile if llama.cpp refuses the model, BackendFailure or BadSetting for a wrong load.
        If llama.cpp aborts on a header, this process ends.
        """
        paths = [file.here, *([target.here] if target else [])]
        places = [device.name for device in self._devices]
        key = json.dumps(
            [[*map(identity, paths)], installed_build(), places, asdict(load), kind if target else ""]
        )
        answer = file_of(options.cache_dir() / "memory", key)
        known = self._remembered.get(answer) or recalled(answer, _Buffers)
        if known is None:
            if self._measurer is None:
                from localspec.llama.measuring import Measurer

                self._measurer = Measurer()
            known = _Buffers(**self._measurer.measure(file.here, load, kind, target.here if target else None))
            remember(answer, known)
        self._remembered[answer] = known
        cache, compute = (_by_device(sizes, known.layers) for sizes in (known.cache, known.compute))
        weights: Counter[str] = Counter()
        for header in () if target is file else (file.header, *adapters):
            weights.update(weights_of(header, known.layers, load.cpu_moe, load.prediction))
        if known.checkpoints:
            cache[HOST] = cache.get(HOST, 0) + int(CHECKPOINT_SHARE * sum(weights.values()))
        return Needs(dict(weights), cache, compute, known.flash)

    def sizes(
        self,
        file: ModelFile,
        adapters: Sequence[Header] = (),
        kind: DraftKind = DraftKind.MODEL,
        target: ModelFile | None = None,
        image_rows: int = 0,
    ) -> Sizes:
        header, inside = file.header, target is file
        return Sizes(
            file.name,
            header.of_model("block_count"),
            lambda load: self.needs(file, replace(load, image_rows=image_rows), adapters, kind, target),
            trained_context(header),
            experts_of(header),
            kind,
            inside,
            head_bytes(header) if inside else 0,
        )

    def devices(self) -> tuple[Device, ...]:
        return with_host(self._devices)

    def close(self) -> None:
        if self._measurer is not None:
            self._measurer.close()
            self._measurer = None


def _by_device(sizes: dict[str, float], layers: Sequence[str]) -> dict[str, int]:
    """Sum the bytes of buffers by device. The names of most buffers begin with the device."""
    gpus = [name for name in dict.fromkeys(layers) if name != HOST]
    totals: dict[str, int] = {}
    for name, size in sizes.items():
        on_host = not gpus or name.startswith(HOST) or name.endswith("_Host")
        named = max((gpu for gpu in gpus if name.startswith(gpu)), key=len, default=None)
        device = HOST if on_host else named or gpus[0]
        totals[device] = totals.get(device, 0) + round(size)
    return totals


def weights_of(
    header: Header, layers: Sequence[str], cpu_moe: int = 0, prediction: bool = True
) -> dict[str, int]:
    """Return the bytes of weights on each device; `layers`: the devices of all layers and of the output.

    The token embedding stays on the CPU, as in llama-model.cpp. If it is also the output matrix, a GPU with the
    output layer has a copy of it. Prediction layers count only with `prediction`.
    """
    trunk = trunk_layers(header) or len(layers)  # an adapter's header has no number of layers
    unused = () if prediction else tuple(f"blk.{i}." for i in range(trunk, len(layers)))
    weights = Counter[str]()
    output = layers[-1] if layers else HOST
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    for tensor in header.tensors:
        if tensor.name.startswith(unused):
            continue
        device = output if tensor.name.startswith("output") else HOST
        if found := re.match(r"blk\.(\d+)\.(.*)", tensor.name):
            layer, on_cpu = int(found[1]), int(found[1]) < cpu_moe and _EXPERTS.match(found[2])
            device = layers[layer] if layer < len(layers) and not on_cpu else HOST
        weights[device] += tensor.bytes
        if tied and tensor.name == "token_embd.weight" and output != device:
            weights[output] += tensor.bytes
    return dict(weights)


def experts_of(header: Header) -> Experts | None:
    count, used = header.of_model("expert_count"), header.of_model("expert_used_count")
    if not 0 < used <= count:
        return None
    of_experts = sum(t.bytes for t in header.tensors if _EXPERTS.match(t.name.split(".", 2)[-1]))
    return Experts(count, used, of_experts / max(sum(t.bytes for t in header.tensors), 1))


def head_bytes(header: Header) -> int:
    """Return the bytes that a pass of the prediction layers reads: their weights and the output matrix."""
    experts, trunk = experts_of(header), trunk_layers(header)
    own = tuple(f"blk.{layer}." for layer in range(trunk, header.of_model("block_count")))
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    read = 0.0
    for tensor in header.tensors:
        if tensor.name.startswith(own) or tensor.name == ("token_embd.weight" if tied else "output.weight"):
            chosen = experts and _EXPERTS.match(tensor.name.split(".", 2)[-1])
            read += tensor.bytes * (experts.used / experts.count if experts and chosen else 1)
    return int(read)


def plan_for(pair: Pair, choices: LoadChoices, devices: Sequence[Device] | None = None) -> Plan:
    """Check and plan a pair whose files are on this machine, with the faster attention if there is memory for it.

    `devices`: None for all devices that llama.cpp lists.
    """
    target, beside, shared = pair.target, None, pair.check()
    with MemoryProbe(devices) as probe:
        if (kind := pair.drafter) is not DraftKind.LOOKUP:
            beside = probe.sizes(pair.draft or target, (), kind, target if kind.is_head else None)
        there, rows = probe.devices(), 0
        if pair.projector:
            header = header_of_part(pair.projector)
            there, rows = without_projector(there, memory_of(header)), ROWS_AT_ONCE.get(kind_of(header), 0)
        sizes = probe.sizes(target, pair.adapters, image_rows=rows)
        planned = replace(plan(sizes, beside, there, choices), shared=shared)
        measured = measures_attention(planned.target, kind)
        if not (measured and (known := attention_of(target.here, target.header, choices.threads))):
            return planned
        load, draft = replace(planned.target, flash_attn=known.flash_attn), planned.draft
        if draft and draft.devices == (HOST,) and not kind.is_head:
            draft = replace(draft, flash_attn=known.flash_attn)  # a draft model uses its target's attention
        needs = tuple(size.needs(of) for size, of in ((sizes, load), (beside, draft)) if size and of)
        if not (choices.ignore_memory or MemoryBudget(there).holds(needs)):
            line = "Chats would be faster without flash attention, but that needs more memory than is free."
            return replace(planned, lines=(*planned.lines, line), attention=known)
        needed = _device_needs(Placement(load, draft, needs), there)
        return replace(planned, target=load, draft=draft, needs=needed, attention=known)


def without_projector(devices: tuple[Device, ...], needed: int) -> tuple[Device, ...]:
    """Return the devices with less free memory: a projector takes `needed` bytes of the first GPU, else of the CPU."""
    name = next((device.name for device in devices if device.is_gpu), HOST)
    return tuple(
        replace(each, free_bytes=max(each.free_bytes - needed * (each.name == name), 0)) for each in devices
    )
