"""A pair before its download: facts, fit and memory plan from the headers; and which known draft fits a target."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.adapters import Adapter, check_adapter
from localspec.gguf.facts import ModelFacts
from localspec.gguf.header import Header, header_at
from localspec.gguf.shared_tokens import SharedTokens
from localspec.memory.devices import DeviceMemory
from localspec.memory.needs import Load, MemoryWishes
from localspec.memory.plan import Plan, plan
from localspec.memory.probe import Probe
from localspec.pairs.compatibility import prove
from localspec.pairs.references import OpenedFile, open_file
from localspec.pairs.registry import DEMO, HubFile, ModelFile, all_pairs
from localspec.pairs.store import distinct, locate


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


_SIZE = re.compile(r"[-_ ]?(?:e|a)?\d+(?:\.\d+)?b\b", re.IGNORECASE)
_MOST_ASKED = 3  # headers that are read over the network, and vocabularies that are compared
_SMALLER = 3  # times, at least, that a draft has to be


def suggested_draft(name: str, target: Header) -> HubFile | None:
    """A draft of the registry whose header fits this target, with the same vocabulary.

    name: of the target's file. Headers of drafts that are not here are read over the network.
    """
    asked = 0
    for draft in _candidates(name):
        if draft.all_bytes * _SMALLER > target.file_bytes:
            continue
        here = locate(draft) is not None
        if not here and asked == _MOST_ASKED:
            continue
        asked += not here
        with suppress(LocalspecError):
            if prove(target, open_file(draft).header) is None:
                return draft
    return None


def draft_of_another_vocabulary(target: Header) -> tuple[Path, SharedTokens] | None:
    """The smallest model here that drafts for this target with the tokens that both have; None for none."""
    files = distinct(file for pair in all_pairs() if pair.name != DEMO for file in pair.files)
    here = [(path.stat().st_size, path) for file in files if (path := locate(file))]
    for size, path in sorted(here)[:_MOST_ASKED]:
        with suppress(LocalspecError):
            shared = prove(target, header_at(path))
            if shared and size * _SMALLER <= target.file_bytes:
                return path, shared
    return None


def _candidates(name: str) -> Iterator[HubFile]:
    """Drafts of pairs whose target is of this family, the largest first; then all that are here."""
    pairs = [pair for pair in all_pairs() if pair.name != DEMO]
    family = _family(name)
    related = [pair.draft for pair in pairs if pair.draft and family and _family(pair.target.name) == family]
    here = [pair.draft for pair in pairs if pair.draft and locate(pair.draft)]
    found: list[ModelFile] = [*sorted(related, key=lambda file: -(file.bytes or 0)), *here]
    yield from (file for file in distinct(found) if isinstance(file, HubFile))


def _family(name: str) -> str:
    """The part of a file's name before the size; "" for a name without one."""
    found = _SIZE.search(name)
    return name[: found.start()].lower().removeprefix("meta-") if found else ""
