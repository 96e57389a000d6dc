"""Everything that can be said about a pair before it costs gigabytes: facts, proof, memory plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import LocalspecError
from localspec.gguf.adapters import Adapter, check_adapter
from localspec.gguf.facts import ModelFacts, header_at
from localspec.gguf.shared_tokens import SharedTokens
from localspec.memory.known_devices import DeviceMemory
from localspec.memory.needs import Load
from localspec.memory.plan import Plan, plan
from localspec.memory.probe import Probe
from localspec.memory.wishes import MemoryWishes
from localspec.pairs.proof import prove
from localspec.pairs.references import OpenedFile


@dataclass(frozen=True, slots=True)
class InspectedModel:
    """One model of a pair."""

    opened: OpenedFile
    facts: ModelFacts
    kv_bytes_per_token: int | None  # F16, as llama.cpp plans it; None: it refuses the model


@dataclass(frozen=True, slots=True)
class Inspection:
    """A pair, judged."""

    target: InspectedModel
    draft: InspectedModel | None
    plan: Plan | None
    devices: tuple[DeviceMemory, ...]
    problem: LocalspecError | None  # why the pair cannot run here; None: it can
    shared: SharedTokens | None = None  # by a draft of another vocabulary


def inspect(
    target: OpenedFile, draft: OpenedFile | None, wishes: MemoryWishes, lora: Sequence[Adapter] = ()
) -> Inspection:
    """Judge a pair; only errors that leave nothing to show are raised. `lora`: adapters of the target."""
    with Probe() as probe:
        devices = probe.devices()
        sides = [_side(opened, probe) for opened in (target, draft) if opened is not None]
        found: Plan | None = None
        problem: LocalspecError | None = None
        shared: SharedTokens | None = None
        try:
            shared = prove(target.header, draft.header if draft else None)
            beside = probe.draft_sizes(target.header, draft.header if draft else None)
            for path, _ in lora:
                check_adapter(path, target.header)
            changed = probe.sizes(target.header, [header_at(path) for path, _ in lora])
            found = plan(changed, beside, devices, wishes)
        except LocalspecError as error:
            problem = error
    return Inspection(sides[0], sides[1] if draft else None, found, devices, problem, shared)


def _side(opened: OpenedFile, probe: Probe) -> InspectedModel:
    try:
        per_token = _kv_bytes_per_token(opened, probe)
    except LocalspecError:  # the plan meets the same error and tells it
        per_token = None
    return InspectedModel(opened, ModelFacts.from_header(opened.header), per_token)


def _kv_bytes_per_token(opened: OpenedFile, probe: Probe) -> int:
    """What a longer context adds to the cache for each token."""
    short, long = 1024, 1024 + 65_536  # far apart, because llama.cpp logs hundredths of a MiB
    sizes = [
        sum(probe.needs(opened.header, Load(length, gpu_layers=0)).cache.values()) for length in (short, long)
    ]
    return round((sizes[1] - sizes[0]) / (long - short))
