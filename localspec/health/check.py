"""Whether the installed llama.cpp works on this processor: the demo target decodes in a child process, once.

A build for another processor crashes on a missing instruction, perhaps during loading. Other builds crash when ggml
repacks weights into its extra buffers, for example after GCC before 12.4 and 13.3 miscompiled its AMX code. Those work
without the buffers, somewhat slower.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from localspec import demo, settings
from localspec.errors import BackendFailure, NotEnoughMemory
from localspec.files import loads_as, write_text_atomically
from localspec.health.build import BACKENDS, has_backend, installed_build, processor, rebuild_command
from localspec.health.trial import Trial, TrialOutcome, decode_in_child

_ILLEGAL_INSTRUCTION = ("SIGILL", "exception 0xc000001d")  # on POSIX and on Windows


@dataclass(frozen=True, slots=True)
class Health:
    """How the installed llama.cpp can be used here."""

    extra_buffers: bool = True  # ggml's buffer types for repacked weights
    died_of: str = ""  # what ended a process that used them
    told: bool = False  # whether the user has read so

    @property
    def note(self) -> str:
        """The notice for the user, "" if all is well."""
        if self.extra_buffers:
            return ""
        return (
            f"this build of llama.cpp dies ({self.died_of}) when it repacks weights for this processor, so they "
            f"are not repacked. Rebuild it to get that back: {rebuild_command(*without_amx())}"
        )


_known: Health | None = None
_on_trial = False  # whether `_known` is to be remembered only once it has helped


def health() -> Health:
    """The known result for these libraries on this processor, or a new check.

    Raises BackendFailure for an unusable build, NotEnoughMemory.
    """
    global _known
    if _known is None:
        _known = _recall(_file()) or check()
    return _known


def check() -> Health:
    """Run the check again, and remember it if it passes. Raises as `health` does."""
    trial = Trial(str(demo.target_path()), {"gpu_layers": 0})
    first = decode_in_child(trial)
    if first.passed:
        return _learn(Health())
    if first.error:
        raise first.error
    if not decode_in_child(replace(trial, extra_buffers=False)).passed:
        raise why_unusable(first)
    return _learn(Health(extra_buffers=False, died_of=first.cause))


def device_fault(name: str, outcome: TrialOutcome) -> BackendFailure:
    """The error of a GPU whose trial gave no answer while the CPU works."""
    return BackendFailure(
        f"llama.cpp does not work on {name}: its trial there ended with {outcome.cause}",
        hint="update the driver, or use the CPU: --device CPU",
    )


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
    """Keep the extra buffers off for this build: a model answered without them."""
    global _on_trial
    if _on_trial and _known is not None:
        _on_trial = False
        _learn(_known)


def untold_note() -> str:
    """The note, at the first call on this machine; else ""."""
    found = health()
    if found.told or not found.note:
        return ""
    _learn(replace(found, told=True))
    return found.note


def why_unusable(outcome: TrialOutcome) -> BackendFailure | NotEnoughMemory:
    """The error of a build whose trial gave no answer."""
    if "SIGKILL" in outcome.cause:
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


def without_amx() -> tuple[str, ...]:
    """cmake options without the crashing feature: AMX if the processor has it, else all native instructions."""
    if "amx_int8" not in processor():
        return ("GGML_NATIVE=off",)
    return ("CMAKE_C_FLAGS=-mno-amx-int8", "CMAKE_CXX_FLAGS=-mno-amx-int8")


def _learn(found: Health) -> Health:
    assume(found)
    if _on_trial:
        return found
    with suppress(OSError):  # a cache that cannot be written costs a second each time
        write_text_atomically(_file(), json.dumps(asdict(found)))
    return found


def _recall(path: Path) -> Health | None:
    try:
        return loads_as(Health, path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _file() -> Path:
    key = hashlib.sha256(f"{installed_build()}\n{processor()}".encode()).hexdigest()[:32]
    return settings.cache_dir() / "health" / f"{key}.json"
