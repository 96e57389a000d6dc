"""The user's options for the plan, ways to load a pair, their memory, and the free memory of devices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from localspec.display import counted, size_text
from localspec.errors import BackendFailure, BadSetting, NotEnoughMemory
from localspec.gguf.facts import DraftKind
from localspec.health.devices import Device
from localspec.models.memory import SNAPSHOTS, WIDEST_BATCH, Load, MemoryWishes, Needs, Sizes, layers_on

_MARGIN = 0.03  # of a device's memory: drivers, fragmentation, the program itself
_LEAST_MARGIN = 200_000_000  # bytes
_LEAST_GPU_MARGIN = 512_000_000  # kernels, workspaces and pools; llama.cpp aborts where they do not fit


class Room:
    """The memory of all devices, less a margin; what shares the CPU's memory is counted with the CPU's."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = {device.name: device for device in devices}
        self._cpu = next((device.name for device in devices if device.kind == "cpu"), "")

    def spare(self, name: str, needs: Sequence[Needs]) -> int:
        """Bytes that are left on a device; negative where it is too small."""
        device = self._devices.get(name)
        if device is None:
            return -_on((name,), needs)
        left = _usable(device) - _on((name,), needs)
        if not device.shares_memory and name != self._cpu:
            return left
        return min(left, _usable(self._devices[self._cpu]) - _on(self.of_cpu, needs))

    def holds(self, needs: Sequence[Needs]) -> bool:
        return all(self.spare(name, needs) >= 0 for need in needs for name in need.by_device)

    @property
    def of_cpu(self) -> tuple[str, ...]:
        """The devices that compute in the CPU's memory."""
        return tuple(d.name for d in self._devices.values() if d.shares_memory or d.name == self._cpu)

    def spare_on_cpu(self, needs: Sequence[Needs]) -> int:
        """Bytes that are left of the CPU's memory."""
        return self.spare(self._cpu, needs)

    def too_small_for(self, needs: Sequence[Needs]) -> NotEnoughMemory:
        """The error that names the device that lacks most."""
        names = dict.fromkeys(name for need in needs for name in need.by_device)
        worst = min(names, key=lambda name: self.spare(name, needs))
        free = self._devices[worst].free_bytes if worst in self._devices else 0
        return NotEnoughMemory(
            f"the target alone needs {size_text(_on((worst,), needs))} on {worst}, "
            f"and {size_text(free)} are free",
            hint="choose a smaller pair or quantisation, or a shorter context (--context), "
            "or load it anyway (--ignore-memory)",
        )


def _usable(device: Device) -> int:
    least = _LEAST_GPU_MARGIN if device.is_gpu and not device.shares_memory else _LEAST_MARGIN
    return device.free_bytes - max(least, int(device.total_bytes * _MARGIN))


def _on(names: Sequence[str], needs: Sequence[Needs]) -> int:
    return sum(need.by_device.get(name, 0) for need in needs for name in names)


# Tokens. Of a text longer than the default a draft reads the newest part, see ModelDrafter.
DEFAULT_CONTEXT = 8192  # where nobody asks for a length
SHORTEST_CONTEXT = 4096  # shortest default context beside a draft, as in llama.cpp's own fit
_SHORTEST_ALONE = 2048
_LONGER = (32_768, 16_384)  # where they fit
_LONGER_SHARE = 0.25  # of the CPU's free memory: how much a longer cache may take of it unasked
# A card reads weights about ten times as fast as a CPU; a verify pass over five tokens against a plain step.
_CPU_TIMES, _VERIFY_GPU, _VERIFY_CPU = 10, 1.1, 1.6
_DEPTH, _ACCEPTANCE = 4, 0.6
_EXPERT_SHARE = 0.9  # of the weights of a mixture
_SMALL_KV = "q8_0"  # of the draft on a GPU: it spares half; on a CPU it reads text twice as slowly


@dataclass(frozen=True, slots=True)
class Way:
    """One way to load the pair, and its memory."""

    target: Load
    draft: Load | None
    needs: tuple[Needs, ...]  # the target's first

    @property
    def spills(self) -> bool:
        """Whether the target has GPUs, and not all of it is on them."""
        return bool(self.target.devices) and (self.target.gpu_layers is not None or self.target.cpu_moe > 0)


class Ways:
    """The ways to load one pair on these devices."""

    def __init__(
        self,
        target: Sizes,
        draft: Sizes | None,
        devices: Sequence[Device],
        wishes: MemoryWishes,
        room: Room,
    ) -> None:
        """Raises BadSetting for a split that does not go with the GPUs."""
        self._target, self._draft, self._wishes, self._room = target, draft, wishes, room
        self.context = wishes.context or min(target.trained_context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        self._all_gpus = _gpus(devices)
        self.gpus = _target_gpus(devices, wishes)  # that the target may be on
        if wishes.split and len(wishes.split) != len(self.gpus):
            raise _bad_split(len(wishes.split), self.gpus)

    def __iter__(self) -> Iterator[Way]:
        if self._draft:
            yield from self._with(self._draft)
        yield from self.alone()

    def alone(self) -> Iterator[Way]:
        """The ways without a draft."""
        return self._with(None)

    def longer(self, way: Way) -> Iterator[Way]:
        """The same way with default contexts that may fit, the longest first.

        A cache in the CPU's memory takes only a small share of it.
        """
        if self._wishes.context is not None or way.target.length < DEFAULT_CONTEXT or way.spills:
            return
        for length in _LONGER:
            if length <= (self._target.trained_context or DEFAULT_CONTEXT):
                draft = way.draft
                if draft and draft.kind.is_head:
                    draft = replace(draft, length=length)
                found = self._way(replace(way.target, length=length), draft)
                more = cache_bytes(found, self._room.of_cpu) - cache_bytes(way, self._room.of_cpu)
                if more <= _LONGER_SHARE * self._room.spare_on_cpu(way.needs):
                    yield found

    def more_at_once(self, way: Way) -> Iterator[Way]:
        """The same way for more replies, if they were wished for where there is room and a GPU has all the target."""
        lanes = self._wishes.more_parallel
        if lanes > way.target.lanes and way.target.devices and not way.spills:
            draft = way.draft and replace(way.draft, lanes=lanes)
            yield self._way(replace(way.target, lanes=lanes), draft)

    def seconds_per_token(self, way: Way) -> float:
        """About how long a token takes, in units of a byte read by a GPU.

        Decoding reads all weights once for each pass. With a draft: cycles of depth 4 with the acceptance of a
        middling pair; without one, plain steps.
        """
        layers = self._target.layers
        on_gpus = sum(layers_on(way.target, layers + 1)) / (layers + 1)
        on_cpu = 1 - on_gpus + on_gpus * _EXPERT_SHARE * way.target.cpu_moe / layers
        size = sum(way.needs[0].weights.values())
        if way.draft is None:
            return size * (1 - on_cpu + _CPU_TIMES * on_cpu)
        draft_size = sum(way.needs[1].weights.values())
        runs = 1 if way.draft.kind is DraftKind.DFLASH else _DEPTH
        on_gpu = set(way.draft.devices or ()) & set(self._all_gpus)
        cycle = size * (_VERIFY_GPU * (1 - on_cpu) + _VERIFY_CPU * _CPU_TIMES * on_cpu)
        cycle += runs * draft_size * (1 if on_gpu else _CPU_TIMES)
        return cycle / sum(_ACCEPTANCE**kept for kept in range(_DEPTH + 1))

    def _with(self, draft: Sizes | None) -> Iterator[Way]:
        for lengths in self._lengths(draft):
            yield from self._whole(draft, *lengths)
        if self.gpus and self._wishes.gpu_layers is None:
            for lengths in self._lengths(draft):
                yield from self._in_part(draft, *lengths)

    def _lengths(self, draft: Sizes | None) -> Iterator[tuple[int, int]]:
        """Contexts of target and draft: as given, or halved together."""
        context = self.context
        longest = min(DEFAULT_CONTEXT, (draft and draft.trained_context) or DEFAULT_CONTEXT)
        longest = context if draft and draft.kind.is_head else longest
        yield context, min(context, longest)
        shortest = SHORTEST_CONTEXT if draft else _SHORTEST_ALONE
        while self._wishes.context is None and context // 2 >= shortest:
            context //= 2
            yield context, min(context, longest)

    def _whole(self, draft: Sizes | None, context: int, window: int) -> Iterator[Way]:
        """All of the target on the GPUs, or as many layers as were asked for."""
        for gpus, beside in self._places(draft):
            way = self._way(self._target_load(context, gpus), self._draft_load(draft, window, beside))
            yield way
            if len(gpus) > 1 and not self._wishes.split:  # by what each has left, now that it is known
                counts = layers_on(way.target, self._target.layers + 1)
                split = shares(sum(counts), self._capacities(way))
                yield self._way(replace(way.target, split=split), way.draft)

    def _places(self, draft: Sizes | None) -> Iterator[tuple[tuple[str, ...], str]]:
        """GPUs of the target and the device of the draft."""
        asked, others = self._wishes.draft_device, self._draft_devices(draft)
        if not self.gpus:
            yield (), asked or "CPU"
            return
        for gpu in () if self._wishes.split else self.gpus:
            yield (gpu,), asked or gpu
        inside = draft is not None and draft.inside
        for gpu in () if self._wishes.split or asked or inside else self.gpus:
            yield from (((gpu,), other) for other in others if draft and other != gpu)
        if len(self.gpus) > 1:
            yield from ((self.gpus, other) for other in others)

    def _draft_devices(self, draft: Sizes | None) -> tuple[str, ...]:
        """Devices of the draft beside a target on GPUs; the CPU only on request."""
        asked = self._wishes.draft_device
        if draft and draft.inside:
            return self.gpus[:1]
        return (asked,) if asked else self._all_gpus if draft else self._all_gpus[:1]

    def _in_part(self, draft: Sizes | None, context: int, window: int) -> Iterator[Way]:
        """More and more of the target on the CPU, from about the part that does not fit on the GPUs."""
        for beside in self._draft_devices(draft):
            way = self._way(self._target_load(context, self.gpus), self._draft_load(draft, window, beside))
            if self._target.has_experts and self._wishes.cpu_moe is None and len(self.gpus) == 1:
                without = self._way(replace(way.target, cpu_moe=self._target.layers), way.draft)
                yield from self._experts_on_cpu(way, without)
                way = without
            yield from self._layers_on_cpu(way)

    def _experts_on_cpu(self, whole: Way, without: Way) -> Iterator[Way]:
        """The experts of more and more layers on the CPU, in the end of all."""
        (gpu,), layers = self.gpus, self._target.layers
        lacking = -self._room.spare(gpu, whole.needs)
        each = (lacking + self._room.spare(gpu, without.needs)) / layers
        for count in range(ceil(lacking / max(each, 1)), layers):
            yield self._way(replace(whole.target, cpu_moe=count), whole.draft)
        yield without

    def _layers_on_cpu(self, whole: Way) -> Iterator[Way]:
        """More and more layers on the CPU, until it is full."""
        capacities = self._capacities(whole)
        split = self._wishes.split or capacities
        limits = [sum(split) * most / share for most, share in zip(capacities, split, strict=True) if share]
        for count in range(min(int(min(limits, default=0)), self._target.layers), -1, -1):
            load = replace(whole.target, gpu_layers=count)
            if len(self.gpus) > 1 and not self._wishes.split:
                load = replace(load, split=shares(count, capacities))
            way = self._way(load, whole.draft)
            yield way
            if self._room.spare_on_cpu(way.needs) < 0:
                return

    def _capacities(self, way: Way) -> tuple[int, ...]:
        """About how many of the target's layers each GPU could hold beside the rest."""
        assert way.target.devices is not None
        found = []
        counts = layers_on(way.target, self._target.layers + 1)
        for gpu, count in zip(way.target.devices, counts, strict=True):
            held = way.needs[0].weights.get(gpu, 0) + way.needs[0].cache.get(gpu, 0)
            each = max(held / max(count, 1), 1)
            found.append(max(count + int(self._room.spare(gpu, way.needs) // each), 0))
        return tuple(found)

    def _target_load(self, context: int, gpus: tuple[str, ...]) -> Load:
        wishes = self._wishes
        layers = self._target.layers + 1 if wishes.gpu_layers is None else wishes.gpu_layers
        split = wishes.split or shares(layers, [self._room.spare(gpu, ()) for gpu in gpus])
        return Load(
            length=context,
            kv_type=wishes.kv_type,
            devices=gpus,
            gpu_layers=wishes.gpu_layers,
            split=split if len(gpus) > 1 else (),
            cpu_moe=min(wishes.cpu_moe or 0, self._target.layers),
            flash_attn=self._flash_attn(gpus),
            rows=WIDEST_BATCH,
            snapshots=SNAPSHOTS,
            lanes=wishes.parallel,
            cuts=True,
        )

    def _draft_load(self, draft: Sizes | None, window: int, device: str) -> Load | None:
        if draft is None:
            return None
        load = Load(window, devices=(device,), flash_attn=self._flash_attn((device,)))
        load = replace(load, lanes=self._wishes.parallel)
        if draft.kind.is_head:
            predicts = draft.kind in (DraftKind.MTP, DraftKind.ASSISTANT)
            return replace(load, kind=draft.kind, prediction=predicts)
        load = replace(load, steps_back=True)
        small = replace(load, kv_type=_SMALL_KV)
        return small if device in self._all_gpus and _can_be_small(draft, load, small) else load

    def _flash_attn(self, gpus: Sequence[str]) -> str:
        return "off" if set(gpus) & set(self._wishes.no_flash) else self._wishes.flash_attn

    def _way(self, target: Load, draft: Load | None) -> Way:
        if draft is None or self._draft is None:
            return Way(target, None, (self._target.needs(target),))
        target = replace(target, prediction=self._draft.inside, cuts=not draft.kind.is_head)
        return Way(target, draft, (self._target.needs(target), self._draft.needs(draft)))


def cache_bytes(way: Way, names: Sequence[str]) -> int:
    """Bytes of the caches on these devices."""
    return sum(need.cache.get(name, 0) for need in way.needs for name in names)


def shares(count: int, of: Sequence[float]) -> tuple[int, ...]:
    """`count` layers in these proportions; the rounding rest goes to the largest remainders."""
    parts = [max(part, 0) for part in of]
    parts = parts if any(parts) else [1] * len(parts)
    exact = [count * part / sum(parts) for part in parts]
    whole = [int(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return tuple(whole)


def _can_be_small(draft: Sizes, load: Load, small: Load) -> bool:
    """Whether its GPU can quantise the draft's cache: that takes flash attention, and heads of whole blocks."""
    try:
        return draft.needs(load).flash_attention and draft.needs(small).flash_attention
    except BackendFailure:
        return False


def _gpus(devices: Sequence[Device]) -> tuple[str, ...]:
    """GPUs with their own memory, or else one without."""
    own = tuple(device.name for device in devices if device.kind == "gpu")
    return own or tuple(device.name for device in devices if device.kind == "igpu")[:1]


def _target_gpus(devices: Sequence[Device], wishes: MemoryWishes) -> tuple[str, ...]:
    if wishes.gpu_layers == 0:
        return ()
    if not wishes.devices:
        return _gpus(devices)
    gpus = {device.name for device in devices if device.is_gpu}
    return tuple(name for name in dict.fromkeys(wishes.devices) if name in gpus)


def _bad_split(count: int, gpus: Sequence[str]) -> BadSetting:
    hint = (
        f"give a share for each of {', '.join(gpus)}; 0 leaves one out"
        if len(gpus) > 1
        else "leave --split out"
    )
    return BadSetting(
        f"the split has {count} shares, and the target can go to {counted(len(gpus), 'GPU')}", hint=hint
    )
