"""List the ways to place a pair on devices, with their memory and speed, and test whether they fit into memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from localspec.display import counted, size_text
from localspec.errors import BackendFailure, BadSetting, NotEnoughMemory
from localspec.gguf.facts import DraftKind
from localspec.llama.load import Load
from localspec.loading.memory import (
    SNAPSHOTS,
    WIDEST_BATCH,
    Experts,
    LoadChoices,
    Needs,
    Sizes,
    layers_on,
)
from localspec.machine.devices import Device

_MARGIN = 0.03  # this share of a device's memory stays free, for drivers and fragmentation
_LEAST_MARGIN = 200_000_000  # minimum bytes to leave free on a device
_LEAST_GPU_MARGIN = 512_000_000  # minimum free bytes for kernels and workspaces; with less, llama.cpp aborts


class MemoryBudget:
    """The free memory of each device, less a margin. Some devices share the CPU's memory."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = {device.name: device for device in devices}
        self.cpu = next((device.name for device in devices if device.kind == "cpu"), "")
        # The CPU and the devices that share its memory.
        self.of_cpu = tuple(each.name for each in devices if each.shares_memory or each.name == self.cpu)

    def spare(self, name: str, needs: Sequence[Needs]) -> int:
        """Return the bytes that `needs` leave free on a device; negative if they do not fit."""
        device = self._devices.get(name)
        if device is None:
            return -_on((name,), needs)
        left = _usable(device) - _on((name,), needs)
        if not device.shares_memory and name != self.cpu:
            return left
        return min(left, _usable(self._devices[self.cpu]) - _on(self.of_cpu, needs))

    def holds(self, needs: Sequence[Needs]) -> bool:
        return all(self.spare(name, needs) >= 0 for need in needs for name in need.by_device)

    def too_small_for(self, needs: Sequence[Needs]) -> NotEnoughMemory:
        names = dict.fromkeys(name for need in needs for name in need.by_device)
        worst = min(names, key=lambda name: self.spare(name, needs))
        free = self._devices[worst].free_bytes if worst in self._devices else 0
        return NotEnoughMemory(
            f"the target alone needs {size_text(_on((worst,), needs))} on {worst}, but only {size_text(free)} are free",
            hint="choose a smaller pair or quantisation, a shorter context (--context), or --ignore-memory",
        )


def _usable(device: Device) -> int:
    least = _LEAST_GPU_MARGIN if device.is_gpu and not device.shares_memory else _LEAST_MARGIN
    return device.free_bytes - max(least, int(device.total_bytes * _MARGIN))


def _on(names: Sequence[str], needs: Sequence[Needs]) -> int:
    return sum(need.by_device.get(name, 0) for need in needs for name in names)


# Default context in tokens; also the longest context of a draft, which leaves out the oldest part of a longer text.
DEFAULT_CONTEXT = 8192
SHORTEST_CONTEXT = 4096  # shortest context of a plan with a draft, as in llama.cpp's --fit
_LONGER = (32_768, 16_384)  # contexts that replace the default one if they fit into memory
_CPU_TIMES = 8  # memory bandwidth of a GPU / that of a CPU: 400 / 50 GB/s
# The share of a plain pass's time that each row takes. The rest is for the weights, which a pass reads once.
_ROW_ON_GPU, _ROW_ON_CPU = 0.025, 0.2
# Assumed chances that the 1st, 2nd, 3rd and 4th draft token are accepted, for a draft model and for a head.
_KEPT, _KEPT_OF_HEAD = (0.6, 0.36, 0.22, 0.13), (0.8, 0.51, 0.26, 0.11)
DEPTH_OF_EXPERTS = 2  # draft depth with experts on the CPU, because each token in a pass needs other experts


@dataclass(frozen=True, slots=True)
class Placement:
    target: Load
    draft: Load | None
    needs: tuple[Needs, ...]  # the needs of the target, then those of the draft


class Placements:
    def __init__(
        self,
        target: Sizes,
        draft: Sizes | None,
        devices: Sequence[Device],
        choices: LoadChoices,
        room: MemoryBudget,
    ) -> None:
        """Raise BadSetting unless the option `split` is empty or has a share for each GPU."""
        self._target, self._draft, self._options, self._budget = target, draft, choices, room
        self.context = choices.context_length or min(
            target.trained_context or DEFAULT_CONTEXT, DEFAULT_CONTEXT
        )
        own = tuple(device.name for device in devices if device.kind == "gpu")
        # All GPUs with memory of their own; if there are none, the first integrated GPU.
        self._all_gpus = own or tuple(device.name for device in devices if device.kind == "igpu")[:1]
        self.gpus = () if choices.gpu_layers == 0 else self._all_gpus  # candidates for target layers
        if choices.devices and choices.gpu_layers != 0:
            known = {device.name for device in devices if device.is_gpu}
            self.gpus = tuple(name for name in dict.fromkeys(choices.devices) if name in known)
        if choices.split and len(choices.split) != len(self.gpus):
            each = f"give a share for each of {', '.join(self.gpus)}; 0 leaves one out"
            raise BadSetting(
                f"the split has {len(choices.split)} shares, "
                f"but the target can use {counted(len(self.gpus), 'GPU')}",
                hint=each if len(self.gpus) > 1 else "leave --split out",
            )

    def __iter__(self) -> Iterator[Placement]:
        if self._draft:
            yield from self._with(self._draft)
        yield from self.alone()

    def alone(self) -> Iterator[Placement]:
        return self._with(None)

    def longer(self, placement: Placement) -> Iterator[Placement]:
        """Yield the placement with longer contexts that take little main memory, the longest first."""
        if (
            self._options.context_length is not None
            or placement.target.length < DEFAULT_CONTEXT
            or placement.target.spills
        ):
            return
        for length in _LONGER:
            if length <= (self._target.trained_context or DEFAULT_CONTEXT):
                draft = placement.draft
                if draft and self._draft and self._draft.kind.is_head:
                    draft = replace(draft, length=length)
                found = self._placement(replace(placement.target, length=length), draft)
                before, after = (
                    sum(need.cache.get(name, 0) for need in each.needs for name in self._budget.of_cpu)
                    for each in (placement, found)
                )
                # A longer context may take a quarter of the free main memory.
                if after - before <= self._budget.spare(self._budget.cpu, placement.needs) / 4:
                    yield found

    def more_at_once(self, placement: Placement) -> Iterator[Placement]:
        """Yield the placement with `more_parallel` slots if the whole target is on GPUs."""
        slots = self._options.more_parallel
        if slots > placement.target.slots and placement.target.devices and not placement.target.spills:
            draft = placement.draft and replace(placement.draft, slots=slots)
            yield self._placement(replace(placement.target, slots=slots), draft)

    def seconds_per_token(self, placement: Placement, depth: int | None = None) -> float:
        """Estimate the time per token. The unit is the time in which a GPU reads one byte."""
        if placement.draft is None or self._draft is None:
            return self._pass_seconds(placement, 1)
        kept = _KEPT_OF_HEAD if self._draft.kind.is_head else _KEPT
        depth = depth or (DEPTH_OF_EXPERTS if self._target.experts and placement.target.spills else len(kept))
        runs = 1 if self._draft.kind is DraftKind.DFLASH else depth
        on_gpu = set(placement.draft.devices or ()) & set(self._all_gpus)
        size = self._draft.head_bytes or sum(placement.needs[1].weights.values())
        run = size * (1 if on_gpu else _CPU_TIMES)
        return (self._pass_seconds(placement, 1 + depth) + runs * run) / (1 + sum(kept[:depth]))

    def _pass_seconds(self, placement: Placement, rows: int) -> float:
        """Estimate the time of a target pass over `rows` rows, in the unit of `seconds_per_token`."""
        experts, layers = self._target.experts or Experts(1, 1, 0.0), self._target.layers
        on_cpu = 1 - sum(layers_on(placement.target, layers + 1)) / (layers + 1)
        experts_on_cpu = 1 - (1 - on_cpu) * (1 - placement.target.cpu_moe / layers)
        size = sum(placement.needs[0].weights.values())
        chosen = size * experts.share * experts.used / experts.count  # bytes of experts that one row reads
        seconds = 0.0
        for weights, reads, share in (
            (size * (1 - experts.share), 1.0, on_cpu),
            (chosen, experts.distinct(rows) / experts.used, experts_on_cpu),
        ):
            gpu, cpu = ((1 - row) * reads + row * rows for row in (_ROW_ON_GPU, _ROW_ON_CPU))
            seconds += weights * ((1 - share) * gpu + _CPU_TIMES * share * cpu)
        return seconds

    def _with(self, draft: Sizes | None) -> Iterator[Placement]:
        for lengths in self._lengths(draft):
            yield from self._whole(draft, *lengths)
        if self.gpus and self._options.gpu_layers is None:
            for lengths in self._lengths(draft):
                yield from self._in_part(draft, *lengths)

    def _lengths(self, draft: Sizes | None) -> Iterator[tuple[int, int]]:
        """Yield context lengths of target and draft. If the user set no length, halve them down to the shortest."""
        context = self.context
        longest = min(DEFAULT_CONTEXT, (draft and draft.trained_context) or DEFAULT_CONTEXT)
        longest = context if draft and draft.kind.is_head else longest
        yield context, min(context, longest)
        shortest = SHORTEST_CONTEXT if draft else 2048
        while self._options.context_length is None and context // 2 >= shortest:
            context //= 2
            yield context, min(context, longest)

    def _whole(self, draft: Sizes | None, context: int, window: int) -> Iterator[Placement]:
        """Yield placements with the whole target on GPUs, or with the number of layers that the user set."""
        for gpus, beside in self._device_sets(draft):
            placement = self._placement(
                self._target_load(context, gpus), self._draft_load(draft, window, beside)
            )
            yield placement
            if len(gpus) > 1 and not self._options.split:  # also yield a split by free memory
                counts = layers_on(placement.target, self._target.layers + 1)
                split = shares(sum(counts), self._capacities(placement))
                yield self._placement(replace(placement.target, split=split), placement.draft)

    def _device_sets(self, draft: Sizes | None) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield each choice of GPUs for the target together with a device for the draft."""
        asked, others = self._options.draft_device, self._draft_devices(draft)
        if not self.gpus:
            yield (), asked or "CPU"
            return
        single = () if self._options.split else self.gpus
        yield from (((gpu,), asked or gpu) for gpu in single)
        if draft and not (asked or draft.inside):
            yield from (((gpu,), other) for gpu in single for other in others if other != gpu)
        if len(self.gpus) > 1:
            yield from ((self.gpus, other) for other in others)

    def _draft_devices(self, draft: Sizes | None) -> tuple[str, ...]:
        if draft and draft.inside:
            return self.gpus[:1]
        asked = self._options.draft_device
        return (asked,) if asked else self._all_gpus if draft else self._all_gpus[:1]

    def _in_part(self, draft: Sizes | None, context: int, window: int) -> Iterator[Placement]:
        """Yield placements with more and more of the target on the CPU, because the GPUs lack memory."""
        layers = self._target.layers
        for beside in self._draft_devices(draft):
            placement = self._placement(
                self._target_load(context, self.gpus), self._draft_load(draft, window, beside)
            )
            if self._target.experts and self._options.cpu_moe is None and len(self.gpus) == 1:
                # First only experts move to the CPU, layer by layer.
                without = self._placement(replace(placement.target, cpu_moe=layers), placement.draft)
                lacking = -self._budget.spare(self.gpus[0], placement.needs)
                each = (lacking + self._budget.spare(self.gpus[0], without.needs)) / layers
                for count in range(ceil(lacking / max(each, 1)), layers):
                    yield self._placement(replace(placement.target, cpu_moe=count), placement.draft)
                yield (placement := without)
            yield from self._layers_on_cpu(placement)

    def _layers_on_cpu(self, whole: Placement) -> Iterator[Placement]:
        capacities = self._capacities(whole)
        split = self._options.split or capacities
        limits = [sum(split) * most / share for most, share in zip(capacities, split, strict=True) if share]
        for count in range(min(int(min(limits, default=0)), self._target.layers), -1, -1):
            load = replace(whole.target, gpu_layers=count)
            if len(self.gpus) > 1 and not self._options.split:
                load = replace(load, split=shares(count, capacities))
            placement = self._placement(load, whole.draft)
            yield placement
            if self._budget.spare(self._budget.cpu, placement.needs) < 0:
                return

    def _capacities(self, placement: Placement) -> tuple[int, ...]:
        """Estimate the number of the target's layers that fit on each GPU beside draft and buffers."""
        assert placement.target.devices is not None
        capacities = []
        counts = layers_on(placement.target, self._target.layers + 1)
        for gpu, count in zip(placement.target.devices, counts, strict=True):
            size = placement.needs[0].weights.get(gpu, 0) + placement.needs[0].cache.get(gpu, 0)
            each = max(size / max(count, 1), 1)
            capacities.append(max(count + int(self._budget.spare(gpu, placement.needs) // each), 0))
        return tuple(capacities)

    def _target_load(self, context: int, gpus: tuple[str, ...]) -> Load:
        wanted = self._options
        layers = self._target.layers + 1 if wanted.gpu_layers is None else wanted.gpu_layers
        split = wanted.split or shares(layers, [self._budget.spare(gpu, ()) for gpu in gpus])
        return Load(
            length=context,
            kv_type=wanted.kv_type,
            devices=gpus,
            gpu_layers=wanted.gpu_layers,
            split=split if len(gpus) > 1 else (),
            cpu_moe=min(wanted.cpu_moe or 0, self._target.layers),
            flash_attn=self._flash_attn(gpus),
            rows_max=WIDEST_BATCH,
            snapshots=SNAPSHOTS,
            slots=wanted.parallel,
            top_k_rows=True,
        )

    def _draft_load(self, draft: Sizes | None, window: int, device: str) -> Load | None:
        if draft is None:
            return None
        is_head, parallel = draft.kind.is_head, self._options.parallel
        load = Load(
            window,
            rows_max=1,
            devices=(device,),
            flash_attn=self._flash_attn((device,)),
            slots=parallel,
            prediction=draft.kind in (DraftKind.MTP, DraftKind.ASSISTANT),
            steps_back=not is_head,
        )
        if is_head or device not in self._all_gpus:
            return load
        small = replace(load, kv_type="q8_0")  # on a CPU this type would halve the prefill speed
        try:  # llama.cpp refuses a quantised KV cache without flash attention, or for heads of odd width
            can_be_small = all(draft.needs(each).flash_attention for each in (load, small))
        except BackendFailure:
            can_be_small = False
        return small if can_be_small else load

    def _flash_attn(self, gpus: Sequence[str]) -> str:
        return "off" if set(gpus) & set(self._options.no_flash) else self._options.flash_attn

    def _placement(self, target: Load, draft: Load | None) -> Placement:
        if draft is None or self._draft is None:
            return Placement(target, None, (self._target.needs(target),))
        target = replace(target, prediction=self._draft.inside, top_k_rows=not self._draft.kind.is_head)
        return Placement(target, draft, (self._target.needs(target), self._draft.needs(draft)))


def shares(count: int, of: Sequence[float]) -> tuple[int, ...]:
    """Return how many of `count` layers each device gets, in proportion to `of`, by largest remainders."""
    parts = [max(part, 0) for part in of]
    parts = parts if any(parts) else [1] * len(parts)
    exact = [count * part / sum(parts) for part in parts]
    whole = [int(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: count - sum(whole)]:
        whole[i] += 1
    return tuple(whole)
