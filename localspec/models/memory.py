"""Where a pair goes and how long its contexts are, so that target and draft fit: decided before loading.

What is given up, in this order, and only as far as needed: the draft's context, the precision of the draft's
cache, the target's context where nobody asked for it, the draft's place beside the target, the draft, and
last the target's place on the GPU. The target's cache is never quantised unasked: that changes its text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.errors import NotEnoughMemory
from localspec.health.missing import missing_device
from localspec.models.devices import DeviceMemory
from localspec.models.header import Header
from localspec.models.needs import Load, Needs
from localspec.models.units import size_text

Measure = Callable[[Header, Load], Needs]

DEFAULT_CONTEXT = 8192  # tokens, where neither the user nor the model asks for less
_SHORTEST_CONTEXT = 2048  # that is chosen unasked
_SHORTEST_DRAFT_CONTEXT = 1024
_SMALL_KV = "q8_0"
_MARGIN = 0.03  # of a device's memory: drivers, fragmentation, the program itself
_LEAST_MARGIN = 200_000_000  # bytes


@dataclass(frozen=True, slots=True)
class MemoryWishes:
    """What the user asked for; None: the plan decides."""

    context: int | None = None  # tokens
    gpu_layers: int | None = None
    kv_type: str = "f16"  # of the target
    device: str | None = None  # of the target
    draft_device: str | None = None
    draft: bool = True
    target_rows: int = 33  # of logits in one decode; compute buffers grow with it
    draft_rows: int = 1
    snapshots: int = 7  # of a recurrent target while there is a draft: each is a whole state


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What the pair would take of one device, in bytes."""

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
    """How to load the pair; the fields are what Model and Context take."""

    context_length: int
    kv_type: str
    device: str | None  # of the target; None: the default GPU, or the CPU where there is none
    gpu_layers: int | None  # None: all, where there is a GPU
    keep_draft: bool
    draft_context_length: int
    draft_kv_type: str
    draft_device: str | None  # None: where the target is
    draft_gpu_layers: int | None
    needs: tuple[DeviceNeed, ...]
    lines: tuple[str, ...]  # what was given up and why, a sentence each; empty when nothing was


@dataclass(frozen=True, slots=True)
class _Choice:
    """One way to load the pair."""

    context: int
    draft: bool
    draft_context: int
    draft_kv: str = "f16"
    draft_device: str | None = None
    gpu_layers: int | None = None


def plan(
    target: Header,
    draft: Header | None,
    devices: Sequence[DeviceMemory],
    wishes: MemoryWishes,
    measure: Measure,
) -> Plan:
    """The first way that fits, from what was wished for downwards.

    Raises NotEnoughMemory when nothing does, BadSetting for a device that does not exist, BadModelFile.
    """
    _check_device(wishes.device, devices)
    _check_device(wishes.draft_device, devices)
    wished = _wished(target, draft, wishes)
    room = {device.name: _room(device) for device in devices}
    smallest: dict[str, Needs] = {}
    for choice in _choices(wished, target, devices, wishes):
        needs = _measured(choice, target, draft, wishes, measure)
        if _fits(needs, room):
            return _plan(choice, wished, needs, devices, wishes)
        smallest = needs
    raise _too_large(smallest, room, devices)


def _wished(target: Header, draft: Header | None, wishes: MemoryWishes) -> _Choice:
    trained = target.number(f"{target.text('general.architecture')}.context_length") or DEFAULT_CONTEXT
    context = wishes.context or min(trained, DEFAULT_CONTEXT)
    return _Choice(
        context=context,
        draft=wishes.draft and draft is not None,
        draft_context=context,
        draft_device=wishes.draft_device,
        gpu_layers=wishes.gpu_layers,
    )


def _choices(
    wished: _Choice, target: Header, devices: Sequence[DeviceMemory], wishes: MemoryWishes
) -> Iterator[_Choice]:
    """Every way to load the pair, the best first."""
    contexts = list(_shorter(wished.context, _SHORTEST_CONTEXT)) if wishes.context is None else []
    yield wished
    if wished.draft:
        small = replace(
            wished, draft_context=min(wished.context, _SHORTEST_DRAFT_CONTEXT), draft_kv=_SMALL_KV
        )
        for length in _shorter(wished.context, _SHORTEST_DRAFT_CONTEXT):
            yield replace(wished, draft_context=length)
        yield small
        for context in contexts:
            yield replace(small, context=context)
        for device in _other_places(wished, devices, wishes):
            yield replace(wished, draft_device=device)
            for context in contexts:
                yield replace(small, context=context, draft_device=device)
    alone = replace(wished, draft=False, draft_device=None)
    yield alone
    for context in contexts:
        yield replace(alone, context=context)
    if wished.gpu_layers is None and _target_place(devices, wishes).is_gpu:
        layers = target.number(f"{target.text('general.architecture')}.block_count") or 0
        for count in range(layers, -1, -1):
            yield replace(alone, gpu_layers=count)


def _shorter(length: int, shortest: int) -> Iterator[int]:
    while length // 2 >= shortest:
        length //= 2
        yield length


def _target_place(devices: Sequence[DeviceMemory], wishes: MemoryWishes) -> DeviceMemory:
    """Where the target goes: what was asked for, else a GPU with its own memory, else one without, else the CPU."""
    if wishes.device is not None:
        return next(device for device in devices if device.name.lower() == wishes.device.lower())
    kinds = ("gpu", "igpu", "cpu")
    return next((device for kind in kinds for device in devices if device.kind == kind), devices[0])


def _other_places(wished: _Choice, devices: Sequence[DeviceMemory], wishes: MemoryWishes) -> list[str]:
    """Where the draft could go instead of beside the target: other GPUs, then the CPU."""
    place = _target_place(devices, wishes)
    if wished.draft_device is not None or not place.is_gpu or wished.gpu_layers == 0:
        return []
    gpus = [device.name for device in devices if device.is_gpu and device != place]
    return [*gpus, *(device.name for device in devices if device.kind == "cpu")]


def _measured(
    choice: _Choice, target: Header, draft: Header | None, wishes: MemoryWishes, measure: Measure
) -> dict[str, Needs]:
    load = Load(
        length=choice.context,
        kv_type=wishes.kv_type,
        gpu_layers=choice.gpu_layers,
        device=wishes.device,
        rows=wishes.target_rows,
        snapshots=wishes.snapshots if choice.draft else 0,
    )
    needs = {"target": measure(target, load)}
    if choice.draft and draft is not None:
        layers, device = _draft_place(choice, wishes)
        load = Load(choice.draft_context, choice.draft_kv, layers, device, wishes.draft_rows)
        needs["draft"] = measure(draft, load)
    return needs


def _draft_place(choice: _Choice, wishes: MemoryWishes) -> tuple[int | None, str | None]:
    """gpu_layers and device of the draft: where it was put, else where the target is."""
    if choice.draft_device is not None:
        return None, choice.draft_device
    return (0, None) if choice.gpu_layers == 0 else (None, wishes.device)


def _fits(needs: dict[str, Needs], room: dict[str, int]) -> bool:
    return all(size <= room.get(device, 0) for device, size in _totals(needs).items())


def _totals(needs: dict[str, Needs]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for need in needs.values():
        for device, size in need.by_device.items():
            totals[device] = totals.get(device, 0) + size
    return totals


def _room(device: DeviceMemory) -> int:
    return device.free - max(_LEAST_MARGIN, int(device.total * _MARGIN))


def _plan(
    choice: _Choice,
    wished: _Choice,
    needs: dict[str, Needs],
    devices: Sequence[DeviceMemory],
    wishes: MemoryWishes,
) -> Plan:
    layers, device = _draft_place(choice, wishes)
    return Plan(
        context_length=choice.context,
        kv_type=wishes.kv_type,
        device=wishes.device,
        gpu_layers=choice.gpu_layers,
        keep_draft=choice.draft,
        draft_context_length=choice.draft_context,
        draft_kv_type=choice.draft_kv,
        draft_device=device,
        draft_gpu_layers=layers,
        needs=tuple(_device_need(device, needs) for device in devices if device.name in _totals(needs)),
        lines=tuple(_lines(choice, wished, _target_place(devices, wishes))),
    )


def _device_need(device: DeviceMemory, needs: dict[str, Needs]) -> DeviceNeed:
    def of(part: str) -> int:
        return sum(getattr(need, part).get(device.name, 0) for need in needs.values())

    return DeviceNeed(device.name, of("weights"), of("cache"), of("compute"), device.free)


def _lines(choice: _Choice, wished: _Choice, place: DeviceMemory) -> Iterator[str]:
    why = f"to fit into the {size_text(place.free)} that are free on {place.name}"
    if choice.context != wished.context:
        yield f"The context is {choice.context:,} tokens instead of {wished.context:,}, {why}."
    if choice.gpu_layers != wished.gpu_layers:
        yield f"The GPU has {choice.gpu_layers} of the target's layers, the CPU the others, {why}."
    if wished.draft and not choice.draft:
        yield f"The draft model is not loaded, {why}; drafts come from the text alone."
    if not choice.draft:
        return
    if choice.draft_context < choice.context:
        yield f"The draft's context is {choice.draft_context:,} tokens, {why}; it drafts no further."
    if choice.draft_kv != wished.draft_kv:
        yield f"The draft's cache is quantised ({choice.draft_kv}), {why}; the text stays the target's."
    if choice.draft_device != wished.draft_device:
        yield f"The draft is on {choice.draft_device}, {why}."


def _check_device(name: str | None, devices: Sequence[DeviceMemory]) -> None:
    if name is not None and name.lower() not in {device.name.lower() for device in devices}:
        raise missing_device(name, (device.name for device in devices))


def _too_large(
    needs: dict[str, Needs], room: dict[str, int], devices: Sequence[DeviceMemory]
) -> NotEnoughMemory:
    free = {device.name: device.free for device in devices}
    totals = _totals(needs)
    worst = max(totals, key=lambda device: totals[device] - room.get(device, 0))
    return NotEnoughMemory(
        f"the target alone needs {size_text(totals[worst])} on {worst}, "
        f"and {size_text(free.get(worst, 0))} are free",
        hint="choose a smaller pair or quantisation, or a shorter context (--context)",
    )
