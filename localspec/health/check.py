"""Whether the installed llama.cpp works on this processor: the demo target decodes in a child process, once.

A build for another processor crashes on a missing instruction, perhaps during loading. Other builds crash when ggml
repacks weights into its extra buffers, for example after GCC before 12.4 and 13.3 miscompiled its AMX code. Those work
without the buffers, somewhat slower.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from localspec import demo, options
from localspec.errors import BackendFailure, NotEnoughMemory
from localspec.files import file_of, recalled, remember
from localspec.health.installed import (
    BACKENDS,
    driver,
    has_backend,
    installed_build,
    processor,
    rebuild_command,
)
from localspec.health.servers import used_servers
from localspec.health.trial import Trial, TrialOutcome, decode_in_child

_ILLEGAL_INSTRUCTION = ("SIGILL", "exception 0xc000001d")  # on POSIX and on Windows


@dataclass(frozen=True, slots=True)
class Health:
    """How the installed llama.cpp can be used here."""

    extra_buffers: bool = True  # ggml's buffer types for repacked weights
    died_of: str = ""  # what ended a process that used them; while they are on, only a suspicion
    told: bool = False  # whether the user has read so

    @property
    def note(self) -> str:
        """The notice for the user, "" if all is well."""
        if self.extra_buffers:
            return ""
        amx = ("CMAKE_C_FLAGS=-mno-amx-int8", "CMAKE_CXX_FLAGS=-mno-amx-int8")
        without = amx if "amx_int8" in processor() else ("GGML_NATIVE=off",)
        return (
            f"this build of llama.cpp dies ({self.died_of}) when it repacks weights for this processor, so they "
            f"are not repacked. Rebuild it to get that back: {rebuild_command(*without)}"
        )


_Found = TypeVar("_Found", "Health", "GpuHealth")
_known: Health | None = None
_on_trial = False  # whether `_known` is to be remembered only once it has helped


def health() -> Health:
    """The known result for these libraries on this processor, or a new check.

    Raises BackendFailure for an unusable build, NotEnoughMemory.
    """
    global _known
    if _known is None:
        _known = recalled(_build_file(), Health) or check()
    return _known


def check() -> Health:
    """Run the check again, and remember it if it passes. Raises as `health` does."""
    trial = Trial(str(demo.target_path()), {"gpu_layers": 0})
    found = decode_in_child(trial)
    alive = not (found.passed or found.error) and decode_in_child(replace(trial, extra_buffers=False)).passed
    if alive:  # an overloaded machine may have ended the first one
        found = decode_in_child(trial)
    if found.passed:
        return _learn(Health())
    if found.error or not alive or _was_killed(found):
        raise found.error or why_unusable(found)
    return _learn(Health(extra_buffers=False, died_of=found.cause))


def assume(found: Health) -> None:
    """Use this without a check: the parent process tells a child."""
    global _known
    _known = found


def try_without_extra_buffers(died_of: str) -> None:
    """Turn extra buffers off in this process, until `remember_trial`: another process crashed with them."""
    global _known, _on_trial
    if health().extra_buffers:
        _known, _on_trial = Health(extra_buffers=False, died_of=died_of), True


def remember_trial() -> None:
    """A model answered. Without extra buffers: they are blamed for the death before it, and off for good after two.

    One death can have another reason, like a driver or too little memory. An answer with them takes the blame back.
    """
    global _on_trial
    if _known is None or not _known.died_of:
        return
    if _on_trial:
        _on_trial = False
        blamed = recalled(_build_file(), Health) or Health()
        remember(_build_file(), _known if blamed.died_of else replace(blamed, died_of=_known.died_of))
        assume(replace(_known, told=True))
    elif _known.extra_buffers:
        _learn(Health())


def untold_note() -> str:
    """The note, at the first call on this machine; else ""."""
    if _on_trial and _known is not None:
        return f"llama.cpp died ({_known.died_of}), perhaps of weights that it repacks, so now they are not repacked"
    if (found := health()).told or not found.note:
        return ""
    return _learn(replace(found, told=True)).note


def why_unusable(outcome: TrialOutcome) -> BackendFailure | NotEnoughMemory:
    """The error of a build whose trial gave no answer."""
    if _was_killed(outcome):
        return NotEnoughMemory("the system ended the first trial of llama.cpp", hint="free some memory")
    if outcome.cause in _ILLEGAL_INSTRUCTION:
        return BackendFailure(
            f"the installed llama.cpp was built for another processor: it dies of {outcome.cause} on this one",
            hint=f"build it here: {rebuild_command()}",
        )
    # A GPU's driver is loaded with the library, also where the trial is on the CPU.
    driver = "update the driver of the GPU, or " if any(map(has_backend, BACKENDS)) else ""
    return BackendFailure(
        f"the installed llama.cpp does not work on this machine: its first trial ended with {outcome.cause}",
        hint=f"{driver}build it for plainer processors: {rebuild_command('GGML_NATIVE=off')}",
    )


def _was_killed(outcome: TrialOutcome) -> bool:
    """Whether the system ended the trial, for lack of memory as a rule."""
    return "SIGKILL" in outcome.cause


def _learn(found: Health) -> Health:
    assume(found)
    return remember(_build_file(), found)


def _build_file() -> Path:
    return file_of(options.cache_dir() / "health", installed_build(), processor())


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
    found = recalled(_gpu_file(name, description), GpuHealth) or GpuHealth()
    if not found.covers(flash_attn, kv_types):
        on_first()
        found = try_gpu(name, description, flash_attn, kv_types)
    if flash_attn == "on" and found.died_of:
        raise BackendFailure(
            f"flash attention ends llama.cpp on {name} ({found.died_of})",
            hint="leave out --flash-attn on: then it is off there",
        )
    return found


def try_gpu(
    name: str, description: str, flash_attn: str = "auto", kv_types: tuple[str, ...] = _KV_TYPES
) -> GpuHealth:
    """Decode the demo target on it, without flash attention if that crashes it. Raises as `ensure_gpu` does."""
    file, flash, died_of = _gpu_file(name, description), flash_attn != "off", ""
    known = recalled(file, GpuHealth) or GpuHealth()
    place, buffers = {"devices": [name]}, health().extra_buffers
    trial = Trial(
        str(demo.target_path()), place, used_servers(), buffers, kv_types=kv_types, widths=GPU_WIDTHS
    )
    if flash and not (died_of := _death(trial)):
        return remember(file, replace(known, kv_types=kv_types, died_of=""))
    outcome = decode_in_child(replace(trial, flash_attn="off", kv_types=("f16", "f16")))
    if not outcome.passed:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        raise outcome.error or BackendFailure(
            f"llama.cpp does not work on {name}: its trial there ended with {outcome.cause}",
            hint="update the driver, or use the CPU: --device CPU",
        )
    if flash and not (died_of := _death(trial)):  # a busy GPU or machine ended the first one
        return remember(file, replace(known, kv_types=kv_types, died_of=""))
    return remember(file, replace(known, died_of=died_of or known.died_of, plain=True))


def untold_gpu_note(name: str, description: str) -> str:
    """The notice about a GPU, at the first call; else ""."""
    file = _gpu_file(name, description)
    found = recalled(file, GpuHealth) or GpuHealth()
    if found.told or not found.died_of:
        return ""
    remember(file, replace(found, told=True))
    return (
        f"flash attention ends llama.cpp on {name} ({found.died_of}), so it is off there. "
        "Another driver is tried with it again"
    )


def _death(trial: Trial) -> str:
    """What ends a trial with flash attention, "" if it passes. Raises errors that do not come from flash attention."""
    outcome = decode_in_child(trial)
    if outcome.error is None:
        if _was_killed(outcome):
            raise why_unusable(outcome)
        return outcome.cause
    if trial.servers or not isinstance(outcome.error, BackendFailure):
        raise outcome.error
    return str(outcome.error)


def _gpu_file(name: str, description: str) -> Path:
    folder = options.cache_dir() / "health"
    return file_of(folder, installed_build(), processor(), driver(), name, description)
