"""The memory plan: how to load a pair so that target and draft fit, decided before loading."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.display import size_text
from localspec.errors import BadSetting
from localspec.gguf.facts import DraftKind
from localspec.gguf.matching import SharedTokens
from localspec.health.devices import Device
from localspec.health.installed import missing_device
from localspec.models.memory import HOST, Load, MemoryWishes, Sizes
from localspec.models.placement import SHORTEST_CONTEXT, Room, Way, Ways


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """Bytes of the pair on one device."""

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
    """How to load the pair."""

    target: Load
    draft: Load | None  # None: it is not loaded
    needs: tuple[DeviceNeed, ...]
    lines: tuple[str, ...]  # sentences about surprising choices and their reasons
    shared: SharedTokens | None = None  # by a draft of another vocabulary


def plan(target: Sizes, draft: Sizes | None, devices: Sequence[Device], wishes: MemoryWishes) -> Plan:
    """The first of the `Ways` that fits, or the first of all where the user wants it tried.

    Raises NotEnoughMemory when none does, BadSetting for wishes that cannot be, BadModelFile.
    """
    wishes = _with_known_names(wishes, devices)
    said: tuple[str, ...]
    if wishes.cpu_moe and not target.has_experts:
        raise BadSetting(f"{target.name} has no experts to keep on the CPU", hint="leave --cpu-moe out")
    asked = wishes.parallel
    if draft is not None and draft.kind is DraftKind.ASSISTANT:
        wishes = replace(wishes, parallel=1, more_parallel=1)
    room = Room(devices)
    ways = Ways(target, draft, devices, wishes, room)
    for way in ways:
        if room.holds(way.needs):
            break
        if wishes.ignore_memory:
            said = (f"The memory plan is ignored: {room.too_small_for(way.needs)}.",)
            return Plan(way.target, way.draft, tuple(_device_needs(way, devices)), said)
    else:
        raise room.too_small_for(way.needs)
    why = f"to fit into {_free(ways.gpus or ('CPU',), devices)}"
    other: Way | None = None
    decide = way.draft is not None and way.spills and not wishes.draft_device
    if decide:
        way, other = faster(way, ways, room)
    way = next((longer for longer in ways.longer(way) if room.holds(longer.needs)), way)
    way = next((more for more in ways.more_at_once(way) if room.holds(more.needs)), way)
    said = (
        *_lines_of_target(way, target, wishes, ways.context, why),
        *_lines_of_draft(way, draft, wishes, why),
        *_lines_of_lanes(way, asked),
        *([_comparison(ways, way, other)] if other else []),
    )
    return Plan(way.target, way.draft, tuple(_device_needs(way, devices)), said)


def faster(pair: Way, ways: Ways, room: Room) -> tuple[Way, Way | None]:
    """The faster one by an estimate: the pair with some of its target on the CPU, or the target alone.

    If the target alone is all on GPUs, also the slower one.
    """
    alone = next((way for way in ways.alone() if room.holds(way.needs)), None)
    if alone is None or alone.spills or alone.target.length < min(pair.target.length, SHORTEST_CONTEXT):
        return pair, None
    if ways.seconds_per_token(alone) < ways.seconds_per_token(pair):
        return alone, pair
    return pair, alone


def _comparison(ways: Ways, way: Way, other: Way) -> str:
    times = ways.seconds_per_token(other) / ways.seconds_per_token(way)
    cost = f"a token would take about {f'{times:.1f} times ' if times > 1.05 else ''}as long"
    if way.draft is None:
        return f"With the draft some of the target would be on the CPU: {cost}."
    gpus = " and ".join(way.target.devices or ())
    return f"Without the draft all of the target would be on {gpus}: {cost}."


def _with_known_names(wishes: MemoryWishes, devices: Sequence[Device]) -> MemoryWishes:
    """The wishes, with each device name spelled as llama.cpp spells it. Raises BadSetting for a missing one."""
    names = {device.name.lower(): device.name for device in devices}

    def known(name: str) -> str:
        if name.lower() not in names:
            raise missing_device(name, names.values())
        return names[name.lower()]

    beside = wishes.draft_device and known(wishes.draft_device)
    return replace(wishes, devices=tuple(map(known, wishes.devices)), draft_device=beside)


def _lines_of_target(way: Way, sizes: Sizes, wishes: MemoryWishes, context: int, why: str) -> Iterator[str]:
    load, trained = way.target, sizes.trained_context
    gpus, total = " and ".join(load.devices or ()), sizes.layers + 1
    if load.length < context:
        yield f"The context is {load.length:,} tokens instead of {context:,}, {why}."
    if trained and load.length > trained:
        yield (
            f"The context of {load.length:,} tokens is longer than the {trained:,} that {sizes.name} was trained "
            "for: beyond them it may lose the thread."
        )
    if load.cpu_moe and wishes.cpu_moe is None:
        yield f"The experts of {load.cpu_moe} of the target's {sizes.layers} layers are on the CPU, {why}."
    if load.gpu_layers is not None and wishes.gpu_layers is None:
        where = (
            f"{load.gpu_layers} of the target's {total} layers are on {gpus}, the others"
            if load.gpu_layers
            else "The target is"
        )
        yield f"{where} on the CPU, {why}."
    elif load.split and not wishes.split:
        yield f"The target is spread over {gpus}: {' and '.join(map(str, load.split))} layers."


def _lines_of_draft(way: Way, wished: Sizes | None, wishes: MemoryWishes, why: str) -> Iterator[str]:
    if wished and way.draft is None:
        what = "prediction head is not used" if wished.kind.is_head else "draft model is not loaded"
        yield f"The {what}, {why}; drafts come from the text alone."
    if way.draft and not wishes.draft_device and way.target.devices:
        (device,) = way.draft.devices or ("",)
        if device not in way.target.devices:
            yield f"The draft is on {device}, because {' and '.join(way.target.devices)} has no room for it."


def _lines_of_lanes(way: Way, asked: int) -> Iterator[str]:
    lanes = way.target.lanes
    if lanes > 1:
        yield f"{lanes} replies run at once, each with a context of {way.target.length:,} tokens of its own."
    elif asked > 1:
        yield "Replies take turns: the prediction head looks into its target's cache, for one text at a time."


def _free(names: Sequence[str], devices: Sequence[Device]) -> str:
    free = sum(device.free_bytes for device in devices if device.name in names)
    return f"the {size_text(free)} that are free on {' and '.join(names)}"


def _device_needs(way: Way, devices: Sequence[Device]) -> Iterator[DeviceNeed]:
    for device in devices:
        weights, cache, compute = (
            sum(getattr(need, part).get(device.name, 0) for need in way.needs)
            for part in ("weights", "cache", "compute")
        )
        if device.name == HOST:
            cache += sum(need.checkpoints for need in way.needs)
        if weights or cache or compute:
            yield DeviceNeed(device.name, weights, cache, compute, device.free_bytes)
