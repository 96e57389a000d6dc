"""The memory that llama.cpp plans for a model: asked once of a stand-in without weights, then remembered."""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import options
from localspec.display import printable
from localspec.errors import BackendFailure, LocalspecError
from localspec.files import file_of, program, recalled, remember
from localspec.gguf.facts import DraftKind, has_head, is_trimmed, trained_context, trunk_layers
from localspec.gguf.header import Entry, Header, padded
from localspec.gguf.trimmed import UINT32, header_bytes, text_entry
from localspec.health.devices import Device, remember_devices, with_host
from localspec.health.installed import installed_build
from localspec.health.stopping import Closing
from localspec.models.memory import CHECKPOINT_SHARE, HOST, Load, MemoryWishes, Needs, Sizes
from localspec.models.plan import Plan, plan
from localspec.models.registry import Pair

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
    target, beside = pair.target.header, None
    with Probe(devices) as probe:
        if pair.draft:
            kind = pair.draft.kind
            beside = probe.sizes(pair.draft.header, (), kind, target if kind.is_head else None)
        elif pair.kind is not DraftKind.LOOKUP and has_head(target):
            beside = probe.sizes(target, (), DraftKind.MTP, target)
        return plan(probe.sizes(target, pair.adapters), beside, probe.devices(), wishes)
