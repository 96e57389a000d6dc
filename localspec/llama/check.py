"""Smoke test of the installed llama.cpp: a child process decodes the demo, and a crash ends only the child.

A build for another processor crashes on a missing instruction. A build by GCC before 12.4 or 13.3 may crash
when ggml repacks weights into its extra buffers. Without extra buffers such a build works, but more slowly.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec import demo, errors, options
from localspec.errors import BackendFailure, BadModelFile, LocalspecError, NotEnoughMemory
from localspec.files import file_of, recalled, remember
from localspec.machine.children import describe_exit, died_by_signal, environment_of_child
from localspec.machine.llama_build import (
    BACKENDS,
    chosen_folder,
    driver,
    has_backend,
    installed_build,
    processor,
    rebuild_command,
)
from localspec.machine.servers import used_servers
from localspec.stopping import current_stop

_ILLEGAL_INSTRUCTION = ("SIGILL", "exception 0xc000001d")  # names of this crash on POSIX and on Windows
_LOOK_SECONDS = 0.2
_SECONDS = 300.0  # time limit of a smoke test, long because a GPU's driver may first compile kernels


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """The description of a smoke test: how to load its model, and which passes to run."""

    path: str
    place: dict[str, Any] = field(default_factory=dict)  # keyword arguments of Model that choose its devices
    servers: tuple[str, ...] = ()  # addresses of the RPC servers whose devices `place` may name
    extra_buffers: bool = True  # whether ggml may repack weights into its extra buffers
    flash_attn: str = "auto"
    kv_types: tuple[str, ...] = ("f16",)  # KV cache types: the target's, then those of drafts
    # The number of tokens in each pass. It varies, because llama.cpp chooses kernels by the number of tokens.
    widths: tuple[int, ...] = (16, 2, 1)
    projector: str = ""  # path of a projector; if set, the check loads it and makes no passes


@dataclass(frozen=True, slots=True)
class SmokeTestOutcome:
    error: LocalspecError | None = None  # the error that loading or decoding raised in the child
    cause: str = ""  # the cause of the child's crash; "": no crash

    @property
    def passed(self) -> bool:
        return not (self.error or self.cause)


def decode_in_child(smoke_test: SmokeTest) -> SmokeTestOutcome:
    """Run a smoke test in a child process. Raises WorkStopped, and OSError if the child cannot start."""
    stop, deadline, pipe = current_stop(), time.monotonic() + _SECONDS, subprocess.PIPE
    command = [sys.executable, "-P", "-m", "localspec.llama.first_decode", json.dumps(asdict(smoke_test))]
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errs,
        # The child ends when its stdin closes, so it also ends if this process is killed.
        subprocess.Popen(
            command, stdin=pipe, stdout=output, stderr=errs, env=environment_of_child()
        ) as child,
    ):
        try:
            while child.poll() is None and (left := deadline - time.monotonic()) > 0:
                stop.check()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(min(left, _LOOK_SECONDS))
            if (code := child.poll()) is None:
                return SmokeTestOutcome(cause=f"no token in {_SECONDS:.0f} s")
        finally:
            child.kill()
        output.seek(0)
        errs.seek(0)
        printed, text = (file.read().decode("utf-8", "replace").strip() for file in (output, errs))
    try:
        answer = json.loads(printed.rpartition("\n")[2])
    except ValueError:
        found = re.search(r"^error: (?:llama.cpp aborted: )?(.+?)\.?$", text, re.MULTILINE)
        last = found[1] if found else text.rpartition("\n")[2]
        return SmokeTestOutcome(cause=("" if died_by_signal(code) else last) or describe_exit(code))
    kind = getattr(errors, answer.get("kind", ""), None)
    return SmokeTestOutcome(kind and kind(answer["error"], hint=answer["hint"]))


@dataclass(frozen=True, slots=True)
class Health:
    extra_buffers: bool = True  # whether ggml may repack weights into its extra buffers
    died_of: str = ""  # the cause of a crash with extra buffers; "": no crash

    @property
    def notice(self) -> str:
        cause = f"llama.cpp crashed ({self.died_of}) with repacked weights, its fastest form of a model"
        return "" if self.extra_buffers else f"{cause}; without them it is slower: see `localspec doctor`"

    @property
    def repair(self) -> str:
        """The command that rebuilds llama.cpp so that it can repack weights for this processor."""
        amx = ("CMAKE_C_FLAGS=-mno-amx-int8", "CMAKE_CXX_FLAGS=-mno-amx-int8")
        return rebuild_command(*(amx if "amx_int8" in processor() else ("GGML_NATIVE=off",)))


_known: Health | None = None
_news: list[str] = []  # notices that `take_news` has not returned yet


def health() -> Health:
    """Return the stored Health of the installed llama.cpp; if nothing is stored, find it with `check`."""
    global _known
    if _known is None:
        _known = recalled(_build_file(), Health) or check()
    return _known


def check() -> Health:
    """Run smoke tests on the CPU; store and return the Health. Raises BackendFailure, NotEnoughMemory."""
    smoke_test = SmokeTest(str(demo.target_path()), {"gpu_layers": 0})
    found, works_without = decode_in_child(smoke_test), False
    if found.cause and (works_without := decode_in_child(replace(smoke_test, extra_buffers=False)).passed):
        found = decode_in_child(smoke_test)  # again: the first crash may be due to a lack of memory
    if found.passed:
        return _learn(Health())
    if found.error or not works_without or _was_killed(found):
        raise found.error or why_unusable(found)
    without = Health(extra_buffers=False, died_of=found.cause)
    _news.append(without.notice)
    return _learn(without)


def assume(found: Health) -> None:
    global _known
    _known = found


def take_news() -> list[str]:
    """Return the notices about llama.cpp and its GPUs since the last call."""
    taken = _news.copy()
    _news.clear()
    return taken


def why_unusable(outcome: SmokeTestOutcome) -> BackendFailure | NotEnoughMemory:
    cause = outcome.cause
    if _was_killed(outcome):
        what = "the system killed a short test of llama.cpp, probably for lack of memory"
        return NotEnoughMemory(what, hint="close other programs and retry")
    if folder := chosen_folder():
        what = f"the llama.cpp in {folder} does not work on this machine: a short test ended with {cause}"
        return BackendFailure(what, hint="set llama to another build, or leave that setting out")
    if cause in _ILLEGAL_INSTRUCTION:
        what = f"the installed llama.cpp was built for another processor: it crashes with {cause} on this one"
        return BackendFailure(what, hint=f"rebuild llama.cpp on this machine: {rebuild_command()}")
    # The hint also names the driver: llama.cpp loads it even for a smoke test on the CPU, and it may have crashed.
    driver = "update the driver of the GPU, or " if any(map(has_backend, BACKENDS)) else ""
    what = f"the installed llama.cpp does not work on this machine: a short test ended with {cause}"
    hint = f"{driver}rebuild llama.cpp without instructions specific to this processor"
    return BackendFailure(what, hint=f"{hint}: {rebuild_command('GGML_NATIVE=off')}")


def _was_killed(outcome: SmokeTestOutcome) -> bool:
    return "SIGKILL" in outcome.cause  # the system mostly sends SIGKILL for lack of memory


def _learn(found: Health) -> Health:
    assume(found)
    return remember(_build_file(), found)


def _build_file(*gpu: str) -> Path:
    return file_of(options.cache_dir() / "health", installed_build(), processor(), *gpu)


_KV_TYPES = ("f16", "q8_0")  # default KV cache types: f16 of a target, q8_0 of a draft with flash attention
GPU_WIDTHS = (1, 2, 5, 9, 64, 1, 2, 5, 9)  # number of tokens in each pass, as in prefill and verify batches


@dataclass(frozen=True, slots=True)
class GpuHealth:
    kv_types: tuple[str, ...] = ()  # KV cache types that worked on the GPU with flash attention
    died_of: str = ""  # the cause of a crash with flash attention; "": no crash
    plain: bool = False  # whether the GPU passed the smoke test without flash attention


def ensure_gpu(
    name: str, description: str, flash_attn: str, kv_type: str, on_first: Callable[[], object]
) -> GpuHealth:
    """Return the stored GpuHealth. If these settings were never tested, call `on_first`, and test with `try_gpu`."""
    kv_types = tuple(dict.fromkeys((*_KV_TYPES, kv_type)))
    health = recalled(_gpu_file(name, description), GpuHealth) or GpuHealth()
    tried = health.plain if flash_attn == "off" or health.died_of else set(kv_types) <= set(health.kv_types)
    if not tried:
        on_first()
        health = try_gpu(name, description, flash_attn, kv_types)
    if flash_attn == "on" and health.died_of:
        what = f"llama.cpp crashes with flash attention on {name} ({health.died_of})"
        hint = "remove `--flash-attn on`: localspec then turns flash attention off for this device"
        raise BackendFailure(what, hint=hint)
    return health


def try_gpu(
    name: str, description: str, flash_attn: str = "auto", kv_types: tuple[str, ...] = _KV_TYPES
) -> GpuHealth:
    """Test a GPU. If it crashes, test it without flash attention. Raises BackendFailure, NotEnoughMemory."""
    file, flash, died_of = _gpu_file(name, description), flash_attn != "off", ""
    known = recalled(file, GpuHealth) or GpuHealth()
    place, buffers = {"devices": [name]}, health().extra_buffers
    more: dict[str, Any] = {"kv_types": kv_types, "widths": GPU_WIDTHS}
    smoke_test = SmokeTest(str(demo.target_path()), place, used_servers(), buffers, **more)
    if flash and not (died_of := _death(smoke_test)):
        return remember(file, replace(known, kv_types=kv_types, died_of=""))
    outcome = decode_in_child(replace(smoke_test, flash_attn="off", kv_types=("f16", "f16")))
    if not outcome.passed:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        what = f"llama.cpp does not work on {name}: a short test ended with {outcome.cause}"
        hint = "update the driver of this device, or use the CPU: --device CPU"
        raise outcome.error or BackendFailure(what, hint=hint)
    if flash and not (died_of := _death(smoke_test)):  # repeat the test: perhaps the GPU was busy
        return remember(file, replace(known, kv_types=kv_types, died_of=""))
    if died_of:
        what = f"llama.cpp crashes with flash attention on {name} ({died_of})"
        _news.append(f"{what}, so localspec turns flash attention off for this device")
    return remember(file, replace(known, died_of=died_of or known.died_of, plain=True))


def ensure_projector(path: Path, identity: str, target: Path, on_first: Callable[[], object]) -> None:
    """Encode an image in a child process, once for each projector. Raises BadModelFile if llama.cpp crashes on it."""
    file = _build_file("projector", identity)
    if (cause := recalled(file, str)) is None:
        on_first()
        place = {"gpu_layers": 0}
        outcome = decode_in_child(SmokeTest(str(target), place, extra_buffers=False, projector=str(path)))
        if _was_killed(outcome):
            raise why_unusable(outcome)
        cause = remember(file, outcome.cause)  # only a crash is stored; the load itself finds any other error
    if cause:
        what = f"{path.name} is damaged: llama.cpp crashes on it ({cause})"
        raise BadModelFile(what, hint="download the projector again, or leave it out: --mmproj none")


def _death(smoke_test: SmokeTest) -> str:
    """Run the test; return why it crashed, or the text of its BackendFailure; "" if it passed."""
    outcome = decode_in_child(smoke_test)
    if outcome.error is None:
        if _was_killed(outcome):
            raise why_unusable(outcome)
        return outcome.cause
    if smoke_test.servers or not isinstance(outcome.error, BackendFailure):
        raise outcome.error
    return str(outcome.error)


def _gpu_file(name: str, description: str) -> Path:
    return _build_file(driver(), name, description)
