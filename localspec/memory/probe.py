"""Asks llama.cpp what a model would need and which devices there are; answers about models are remembered."""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import settings
from localspec.display import printable, size_text
from localspec.errors import BackendFailure, LocalspecError
from localspec.files import loads_as, program, write_text_atomically
from localspec.gguf.adapters import Adapter
from localspec.gguf.facts import trained_context
from localspec.gguf.header import Entry, Header, header_at, padded
from localspec.gguf.heads import DraftKind, draft_kind, has_head, trunk_layers
from localspec.gguf.trimmed import is_trimmed
from localspec.gguf.writing import UINT32, header_bytes, text_entry
from localspec.health.build import installed_build
from localspec.health.stopping import Closing
from localspec.memory.devices import DeviceMemory, remember_devices, with_host
from localspec.memory.needs import CHECKPOINT_SHARE, HOST, Load, MemoryWishes, Needs
from localspec.memory.plan import Plan, plan

if TYPE_CHECKING:  # loads llama.cpp
    from localspec.llama.measure_memory import Measurer

_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch)?exps")
_AS_NAMED_IN_ERRORS = "this file"  # what llama.cpp reads is a stand-in for it


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Bytes by kind of buffer, and the device of each layer, as llama.cpp tells them."""

    cache: dict[str, float]
    compute: dict[str, float]
    layers: tuple[str, ...]
    flash: bool  # whether every layer's device can do flash attention
    checkpoints: bool  # whether the cache needs some to step back


class Probe(Closing):
    """Answers `needs` and `devices`; llama.cpp is loaded when something is asked that is not remembered."""

    def __init__(self, devices: Sequence[DeviceMemory] | None = None) -> None:
        """devices: as llama.cpp lists them now, where they are known; None has them asked for."""
        self._listed: tuple[DeviceMemory, ...] | None = None
        if devices is not None:
            self._learn(tuple(devices))
        self._measurer: Measurer | None = None
        self._opened = ExitStack()
        self._written: dict[str, Path] = {}
        self._remembered: dict[str, _Buffers] = {}

    def needs(
        self, header: Header, load: Load, adapters: Sequence[Header] = (), target: Header | None = None
    ) -> Needs:
        """What a model of this header would need; for a head, what it adds to its target.

        Raises BadModelFile where llama.cpp refuses the model, BackendFailure or BadSetting where it refuses the load.
        A header on which llama.cpp aborts ends the process.
        """
        fingerprint = _fingerprint(header)
        places = [device.name for device in self._known_devices()]
        asked: dict[str, Any] = {"place": load.place, "context": load.context}
        if target is not None:
            of_target = _fingerprint(target)
            asked |= {"context": load.head_context, "kind": load.kind, "target": of_target}
        key = hashlib.sha256(json.dumps([fingerprint, places, asked]).encode()).hexdigest()[:32]
        known = self._remembered.get(key) or _recall(key)
        if known is None:
            if target is not None:
                asked["target"] = self._weightless(target, of_target)
            try:
                known = _Buffers(**self._measuring().measure(self._weightless(header, fingerprint), **asked))
            except LocalspecError as error:
                name = printable(header.text("general.name")) or _AS_NAMED_IN_ERRORS
                raise type(error)(str(error).replace(_AS_NAMED_IN_ERRORS, name), hint=error.hint) from error
            _remember(key, known)
        self._remembered[key] = known
        weights = () if target is header else (header, *adapters)
        return _needs(weights, known, load)

    def sizes(self, header: Header, adapters: Sequence[Header] = ()) -> "ProbedSizes":
        """What a memory plan asks about a model, and its adapters."""
        return ProbedSizes(header, self, adapters)

    def draft_sizes(self, target: Header, draft: Header | None) -> "ProbedSizes | None":
        """Of the draft beside a target, or of the head inside it; None without either."""
        if draft is None:
            return ProbedSizes(target, self, (), target, DraftKind.MTP) if has_head(target) else None
        kind = draft_kind(draft)
        return ProbedSizes(draft, self, (), target if kind.is_head else None, kind)

    def devices(self) -> tuple[DeviceMemory, ...]:
        """Every device with its memory."""
        return with_host(self._known_devices())

    def close(self) -> None:
        if self._measurer is not None:
            self._measurer.close()
            self._measurer = None
        self._opened.close()
        self._written.clear()

    def _measuring(self) -> "Measurer":
        if self._measurer is None:
            from localspec.llama.measure_memory import Measurer

            self._measurer = Measurer()
        return self._measurer

    def _known_devices(self) -> tuple[DeviceMemory, ...]:
        if self._listed is not None:
            return self._listed
        return self._learn(listed_devices())

    def _learn(self, listed: tuple[DeviceMemory, ...]) -> tuple[DeviceMemory, ...]:
        self._listed = listed
        remember_devices(listed)
        return listed

    def _weightless(self, header: Header, fingerprint: str) -> Path:
        if fingerprint not in self._written:
            try:
                self._written[fingerprint] = write_weightless(
                    header, self._new_folder() / _AS_NAMED_IN_ERRORS
                )
            except OSError as error:
                raise BackendFailure(
                    f"no temporary file can be written: {error.strerror or error}",
                    hint=f"make room for {settings.cache_dir()}, or set LOCALSPEC_HOME to another folder",
                ) from error
        return self._written[fingerprint]

    def _new_folder(self) -> Path:
        return Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="localspec-")))


def listed_devices() -> tuple[DeviceMemory, ...]:
    """Every device with its memory, as llama.cpp lists them now."""
    from localspec.llama.devices import devices

    return tuple(
        DeviceMemory(device.name, device.kind, device.free_bytes, device.total_bytes, device.shares_memory)
        for device in devices()
    )


@dataclass(frozen=True, slots=True)
class ProbedSizes:
    """A model's Sizes, as llama.cpp plans them for its header."""

    header: Header
    probe: Probe
    adapters: Sequence[Header] = ()  # they lie where the matrices are that they change
    target: Header | None = None  # of a head
    kind: DraftKind = DraftKind.MODEL

    @property
    def name(self) -> str:
        return printable(self.header.text("general.name")) or "the target"

    @property
    def layers(self) -> int:
        return self._number("block_count") or 0

    @property
    def has_experts(self) -> bool:
        return bool(self._number("expert_count"))

    @property
    def trained_context(self) -> int | None:
        return trained_context(self.header)

    def needs(self, load: Load) -> Needs:
        return self.probe.needs(self.header, load, self.adapters, self.target)

    @property
    def inside(self) -> bool:
        return self.target is self.header

    def _number(self, key: str) -> int | None:
        return self.header.number(f"{self.header.text('general.architecture')}.{key}")


def _needs(headers: Sequence[Header], known: _Buffers, load: Load) -> Needs:
    cache, compute = (_by_device(sizes, known.layers) for sizes in (known.cache, known.compute))
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


def _recall(key: str) -> _Buffers | None:
    try:
        return loads_as(_Buffers, _memory_file(key).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _remember(key: str, known: _Buffers) -> None:
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_text_atomically(_memory_file(key), json.dumps(asdict(known)))


def _memory_file(key: str) -> Path:
    return settings.cache_dir() / "memory" / f"{key}.json"


_NO_VOCABULARY = "no_vocab"  # llama-vocab.cpp: as many dummy tokens as ARCHITECTURE.vocab_size says


def write_weightless(header: Header, path: Path) -> Path:
    """Write it as a sparse file of the model's length. Raises OSError."""
    data = header_bytes(_entries(header), header.tensors)
    end = max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    with path.open("wb") as file:
        file.write(data)
        if sys.platform == "win32" and (fsutil := program("fsutil")):
            subprocess.run([fsutil, "sparse", "setflag", str(path)], check=False, capture_output=True)
        file.truncate(padded(len(data), header.alignment) + padded(end, header.alignment))
    return path


def _entries(header: Header) -> dict[str, Entry]:
    kept = {key: entry for key, entry in header.entries.items() if not key.startswith("tokenizer.")}
    kept["tokenizer.ggml.model"] = text_entry(_NO_VOCABULARY)
    if header.vocabulary is not None and not is_trimmed(header):
        size = header.vocabulary.count
        kept[f"{header.text('general.architecture')}.vocab_size"] = Entry(UINT32, size)
    return kept


def plan_for_files(
    target: Path,
    draft: Path | None,
    wishes: MemoryWishes,
    devices: Sequence[DeviceMemory] | None = None,
    lora: Sequence[Adapter] = (),
) -> Plan:
    """How to load two files here; llama.cpp is asked unless the answer is remembered.

    devices: as llama.cpp lists them now; None asks for them as well.
    Raises NotEnoughMemory, BadSetting, BadModelFile.
    """
    with Probe(devices) as probe:
        beside = probe.draft_sizes(header_at(target), header_at(draft) if draft else None)
        changed = probe.sizes(header_at(target), [header_at(path) for path, _ in lora])
        return plan(changed, beside, probe.devices(), wishes)


def outlook(target: Header, draft: Header | None) -> tuple[str, ...]:
    """How a pair would run on this machine, in sentences; also where it would not."""
    try:
        with Probe() as probe:
            beside = probe.draft_sizes(target, draft)
            found = plan(probe.sizes(target), beside, probe.devices(), MemoryWishes())
    except LocalspecError as error:
        return (f"It would not run here: {error}.",)
    needs = " and ".join(
        f"{size_text(need.total)} of {size_text(need.free)} on {need.device}" for need in found.needs
    )
    return (f"With {found.target.length:,} tokens of context it takes {needs}.", *found.lines)
