"""The memory plan: how to load a pair so that target and draft fit, decided before loading."""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import options
from localspec.display import printable, size_text
from localspec.errors import BackendFailure, BadSetting, LocalspecError
from localspec.files import file_of, program, recalled, remember
from localspec.gguf.facts import DraftKind, draft_kind, has_head, is_trimmed, trained_context, trunk_layers
from localspec.gguf.header import Entry, Header, padded
from localspec.gguf.matching import SharedTokens
from localspec.gguf.trimmed import UINT32, header_bytes, text_entry
from localspec.health.devices import Device, remember_devices, with_host
from localspec.health.installed import installed_build, missing_device
from localspec.health.stopping import Closing
from localspec.models.placement import (
    CHECKPOINT_SHARE,
    HOST,
    SHORTEST_CONTEXT,
    Load,
    MemoryWishes,
    Needs,
    Room,
    Sizes,
    Way,
    Ways,
)
from localspec.models.registry import Pair


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
    draft = draft if wishes.draft else None
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


if TYPE_CHECKING:  # loads llama.cpp
    from localspec.llama.measure_memory import Measurer

_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch)?exps")
_AS_NAMED_IN_ERRORS = "this file"  # what llama.cpp reads is a stand-in for it


@dataclass(frozen=True, slots=True)
class _Buffers:
    """llama.cpp's bytes by kind of buffer, and the device of each layer."""

    cache: dict[str, float]
    compute: dict[str, float]
    layers: tuple[str, ...]
    flash: bool  # whether every layer's device can do flash attention
    checkpoints: bool  # whether the cache needs some to step back


class Probe(Closing):
    """Answers `needs` and `devices`; loads llama.cpp for answers that are not stored."""

    def __init__(self, devices: Sequence[Device] | None = None) -> None:
        """devices: as llama.cpp lists them now, where they are known; None has them asked for."""
        self._listed = None if devices is None else tuple(devices)
        if self._listed is not None:
            remember_devices(self._listed)
        self._measurer: Measurer | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of stand-ins, by fingerprint
        self._remembered: dict[Path, _Buffers] = {}

    def needs(
        self, header: Header, load: Load, adapters: Sequence[Header] = (), target: Header | None = None
    ) -> Needs:
        """The memory of a model with this header; for a head, its addition to its target.

        Raises BadModelFile if llama.cpp refuses the model, BackendFailure or BadSetting where it refuses the load.
        A header on which llama.cpp aborts ends the process.
        """
        fingerprint = _fingerprint(header)
        places = [device.name for device in self._known_devices()]
        asked: dict[str, Any] = {"place": load.place, "context": load.context}
        if target is not None:
            of_target = _fingerprint(target)
            asked |= {"context": load.head_context, "kind": load.kind, "target": of_target}
        file = file_of(options.cache_dir() / "memory", json.dumps([fingerprint, places, asked]))
        known = self._remembered.get(file) or recalled(file, _Buffers)
        if known is None:
            if target is not None:
                asked["target"] = self._weightless(target, of_target)
            try:
                known = _Buffers(**self._measuring().measure(self._weightless(header, fingerprint), **asked))
            except LocalspecError as error:
                name = printable(header.text("general.name")) or _AS_NAMED_IN_ERRORS
                raise type(error)(str(error).replace(_AS_NAMED_IN_ERRORS, name), hint=error.hint) from error
            remember(file, known)
        self._remembered[file] = known
        weights = () if target is header else (header, *adapters)
        return _needs(weights, known, load, contexts=load.lanes if target is not None else 1)

    def sizes(
        self,
        header: Header,
        adapters: Sequence[Header] = (),
        kind: DraftKind = DraftKind.MODEL,
        target: Header | None = None,
    ) -> Sizes:
        """A model as llama.cpp plans it, with its adapters; of a head, with its target."""
        return Sizes(
            printable(header.text("general.name")) or "the target",
            header.of_model("block_count"),
            lambda load: self.needs(header, load, adapters, target),
            trained_context(header),
            bool(header.of_model("expert_count")),
            kind,
            inside=target is header,
        )

    def plan(
        self, headers: Sequence[Header], wishes: MemoryWishes, adapters: Sequence[Header] = ()
    ) -> "Plan":
        """How to load a target, and a draft beside it or the head inside it. Raises as `plan` does."""
        target = headers[0]
        beside = self.sizes(target, (), DraftKind.MTP, target) if has_head(target) else None
        for draft in headers[1:]:
            kind = draft_kind(draft)
            beside = self.sizes(draft, (), kind, target if kind.is_head else None)
        return plan(self.sizes(target, adapters), beside, self.devices(), wishes)

    def devices(self) -> tuple[Device, ...]:
        """Every device with its memory."""
        return with_host(self._known_devices())

    def close(self) -> None:
        if self._measurer is not None:
            self._measurer.close()
            self._measurer = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _measuring(self) -> "Measurer":
        if self._measurer is None:
            from localspec.llama.measure_memory import Measurer

            self._measurer = Measurer()
        return self._measurer

    def _known_devices(self) -> tuple[Device, ...]:
        if self._listed is None:
            from localspec.llama.devices import devices

            self._listed = tuple(devices())
            remember_devices(self._listed)
        return self._listed

    def _weightless(self, header: Header, fingerprint: str) -> Path:
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="localspec-")
            path = Path(self._folder.name, fingerprint, _AS_NAMED_IN_ERRORS)
            if not path.exists():
                path.parent.mkdir()
                write_weightless(header, path)
        except OSError as error:
            raise BackendFailure(
                f"no temporary file can be written: {error.strerror or error}",
                hint=f"make room for {options.cache_dir()}, or set LOCALSPEC_HOME to another folder",
            ) from error
        return path


def _needs(headers: Sequence[Header], known: _Buffers, load: Load, contexts: int) -> Needs:
    """`contexts`: as many have these buffers."""
    cache, compute = (
        {device: contexts * size for device, size in _by_device(sizes, known.layers).items()}
        for sizes in (known.cache, known.compute)
    )
    weights: Counter[str] = Counter()
    for header in headers:
        weights.update(_weights(header, known.layers, load.cpu_moe, load.prediction))
    checkpoints = int(CHECKPOINT_SHARE * sum(weights.values())) if known.checkpoints else 0
    return Needs(dict(weights), cache, compute, known.flash, checkpoints)


def _by_device(sizes: dict[str, float], layers: Sequence[str]) -> dict[str, int]:
    """Sizes by device, from sizes by kind of buffer: a device may call its buffers otherwise than itself."""
    gpus = [name for name in dict.fromkeys(layers) if name != HOST]
    found: dict[str, int] = {}
    for name, size in sizes.items():
        on_host = not gpus or name.startswith(HOST) or name.endswith("_Host")
        named = max((gpu for gpu in gpus if name.startswith(gpu)), key=len, default=None)
        device = HOST if on_host else named or gpus[0]
        found[device] = found.get(device, 0) + round(size)
    return found


def _weights(
    header: Header, layers: Sequence[str], cpu_moe: int = 0, prediction: bool = True
) -> dict[str, int]:
    """Bytes of the tensors on each device, given the device of each layer and, last, of the output.

    llama-model.cpp: the token embedding stays on the CPU; where it also serves as the output matrix and the
    output lies elsewhere, there is a second copy of it. Prediction layers are loaded where they are asked for.
    """
    trunk = trunk_layers(header) or len(layers)  # an adapter does not say; it has what it changes
    unused = () if prediction else tuple(f"blk.{i}." for i in range(trunk, len(layers)))
    weights: dict[str, int] = {}
    output = layers[-1] if layers else HOST
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    for tensor in header.tensors:
        if tensor.name.startswith(unused):
            continue
        device = _device_of(tensor.name, layers, output, cpu_moe)
        weights[device] = weights.get(device, 0) + tensor.bytes
        if tied and tensor.name == "token_embd.weight" and output != device:
            weights[output] = weights.get(output, 0) + tensor.bytes
    return weights


def _device_of(tensor: str, layers: Sequence[str], output: str, cpu_moe: int) -> str:
    head, _, rest = tensor.partition(".")
    if head != "blk":
        return output if head.startswith("output") else HOST
    number, _, name = rest.partition(".")
    layer = int(number) if number.isdecimal() else -1
    if not 0 <= layer < len(layers) or (layer < cpu_moe and _EXPERTS.match(name)):
        return HOST
    return layers[layer]


def _fingerprint(header: Header) -> str:
    """Equal for headers for which llama.cpp plans the same buffers."""
    kept = [
        (key, repr(entry.value)) for key, entry in header.entries.items() if not key.startswith("tokenizer.")
    ]
    tensors = [(tensor.name, tensor.shape, tensor.type) for tensor in header.tensors]
    count = header.vocabulary.count if header.vocabulary else 0
    return hashlib.sha256(repr((kept, tensors, count, installed_build())).encode()).hexdigest()


def write_weightless(header: Header, path: Path) -> None:
    """Write a stand-in for a model: a sparse file of its length, with dummy tokens. Raises OSError."""
    kept = {key: entry for key, entry in header.entries.items() if not key.startswith("tokenizer.")}
    kept["tokenizer.ggml.model"] = text_entry("no_vocab")  # llama-vocab.cpp: ARCHITECTURE.vocab_size tokens
    if header.vocabulary is not None and not is_trimmed(header):
        kept[f"{header.architecture}.vocab_size"] = Entry(UINT32, header.vocabulary.count)
    data = header_bytes(kept, header.tensors)
    end = max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    with path.open("wb") as file:
        file.write(data)
        if sys.platform == "win32" and (fsutil := program("fsutil")):
            subprocess.run([fsutil, "sparse", "setflag", str(path)], check=False, capture_output=True)
        file.truncate(padded(len(data), header.alignment) + padded(end, header.alignment))


def plan_for(pair: Pair, wishes: MemoryWishes, devices: Sequence[Device] | None = None) -> Plan:
    """How to load a pair; llama.cpp is asked unless the answer is remembered.

    devices: as llama.cpp lists them now; None asks for them as well.
    Raises NotEnoughMemory, BadSetting, BadModelFile.
    """
    if pair.kind is DraftKind.LOOKUP:
        wishes = replace(wishes, draft=False)
    with Probe(devices) as probe:
        return probe.plan([file.header for file in pair.files], wishes, pair.adapters)
