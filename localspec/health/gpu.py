"""Whether a GPU works with its driver: the demo target decodes there in a child process, once for each driver.

Some drivers crash in one kernel only, for example flash attention, and some only after several passes.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from localspec import demo, settings
from localspec.errors import BackendFailure, NotEnoughMemory
from localspec.files import loads_as, write_text_atomically
from localspec.health.build import driver, installed_build, processor
from localspec.health.check import device_fault, health, why_unusable
from localspec.health.servers import used_servers
from localspec.health.trial import Trial, TrialOutcome, decode_in_child

_KV_TYPES = ("f16", "q8_0")  # of targets, and of drafts where there is flash attention
GPU_WIDTHS = (1, 2, 5, 9, 64, 1, 2, 5, 9)  # tokens: as warming up begins, then a prompt and what follows it


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """How a GPU can be used with this build and driver."""

    kv_types: tuple[str, ...] = ()  # that decoded with flash attention
    died_of: str = ""  # what ended a process that used flash attention, where one without it lives
    plain: bool = False  # whether it decoded without flash attention
    told: bool = False  # whether the user has read the note

    def covers(self, flash_attn: str, kv_types: tuple[str, ...]) -> bool:
        """Whether this use of the GPU was tried before."""
        if flash_attn == "off" or self.died_of:
            return self.plain
        return set(kv_types) <= set(self.kv_types)


def ensure_gpu(
    name: str, description: str, flash_attn: str, kv_type: str, on_first: Callable[[], object]
) -> GpuHealth:
    """Return at once for a GPU that decoded like this before; else call `on_first` and try it in a child process.

    Raises BackendFailure if it fails, NotEnoughMemory.
    """
    kv_types = tuple(dict.fromkeys((*_KV_TYPES, kv_type)))
    found = _recall(_file(name, description))
    if not found.covers(flash_attn, kv_types):
        on_first()
        found = try_gpu(name, description, flash_attn, kv_types)
    if flash_attn == "on" and found.died_of:
        raise BackendFailure(
            f"flash attention ends llama.cpp on {name} ({found.died_of})",
            hint="leave --flash-attn on out: it is then off there",
        )
    return found


def try_gpu(
    name: str, description: str, flash_attn: str = "auto", kv_types: tuple[str, ...] = _KV_TYPES
) -> GpuHealth:
    """Decode the demo target on it, without flash attention if that crashes it. Raises as `ensure_gpu` does."""
    file, died_of = _file(name, description), ""
    known = _recall(file)
    place, buffers = {"devices": [name]}, health().extra_buffers
    trial = Trial(str(demo.target_path()), place, used_servers(), buffers, widths=GPU_WIDTHS)
    if flash_attn != "off":
        outcome = decode_in_child(replace(trial, kv_types=kv_types))
        if outcome.passed:
            return _learn(file, replace(known, kv_types=kv_types, died_of=""))
        died_of = _cause(outcome, trial)
    outcome = decode_in_child(replace(trial, flash_attn="off", kv_types=("f16", "f16")))
    if outcome.passed:
        return _learn(file, replace(known, died_of=died_of or known.died_of, plain=True))
    with suppress(OSError):
        file.unlink(missing_ok=True)
    raise outcome.error or device_fault(name, outcome)


def untold_note(name: str, description: str) -> str:
    """The notice about a GPU, at the first call; else ""."""
    file = _file(name, description)
    found = _recall(file)
    if found.told or not found.died_of:
        return ""
    _learn(file, replace(found, told=True))
    return (
        f"flash attention ends llama.cpp on {name} ({found.died_of}), so it is off there. "
        "Another driver is tried with it again"
    )


def _cause(outcome: TrialOutcome, trial: Trial) -> str:
    """Why a trial with flash attention failed. Raises errors that do not come from flash attention."""
    if outcome.error is None:
        fault = why_unusable(outcome)
        if isinstance(fault, NotEnoughMemory):
            raise fault
        return outcome.cause
    if trial.servers or not isinstance(outcome.error, BackendFailure):
        raise outcome.error
    return str(outcome.error)


def _learn(file: Path, found: GpuHealth) -> GpuHealth:
    with suppress(OSError):  # a cache that cannot be written costs a trial each time
        write_text_atomically(file, json.dumps(asdict(found)))
    return found


def _recall(file: Path) -> GpuHealth:
    try:
        return loads_as(GpuHealth, file.read_text("utf-8"))
    except (OSError, ValueError):
        return GpuHealth()


def _file(name: str, description: str) -> Path:
    known_by = (installed_build(), processor(), driver(), name, description)
    key = hashlib.sha256("\n".join(known_by).encode()).hexdigest()[:32]
    return settings.cache_dir() / "health" / f"gpu-{key}.json"
