"""A child process decodes the first tokens of a model file, so that a crash ends only the child."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from localspec import errors
from localspec.errors import LocalspecError
from localspec.health.stopping import heeded

_LOOK_SECONDS = 0.2
_SECONDS = 300.0  # a GPU's programs may have to be compiled first
_CRASHED_ON_WINDOWS = 0xC0000000  # exit codes from here on are NTSTATUS errors: what signals are elsewhere


@dataclass(frozen=True, slots=True)
class Trial:
    """The passes of a trial, and how its model is loaded."""

    path: str
    place: dict[str, Any] = field(default_factory=dict)  # for Model: devices, gpu_layers, ...
    servers: tuple[str, ...] = ()  # of RPC, whose devices are there as well
    extra_buffers: bool = True  # ggml's buffer types for repacked weights
    flash_attn: str = "auto"
    kv_types: tuple[str, ...] = ("f16",)  # a context for each: the target's, then those of drafts
    # Tokens of the passes: each goes through other kernels; a prompt first.
    widths: tuple[int, ...] = (16, 2, 1)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How a trial ended."""

    error: LocalspecError | None = None  # what loading or decoding raised
    cause: str = ""  # what ended it before it could answer

    @property
    def passed(self) -> bool:
        return not (self.error or self.cause)


def decode_in_child(trial: Trial) -> TrialOutcome:
    """Load the file and decode a few tokens in a child process. Raises OSError for a file that is gone."""
    # Nothing is ever written: the child ends when the pipe does, so also when this process is killed.
    reader, writer = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "localspec.llama.first_decode", json.dumps(asdict(trial))],
            stdin=reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said = _said(child)
    finally:
        os.close(reader)
        os.close(writer)
    if said is None:
        return TrialOutcome(cause="no token in all its time")
    out, words = said
    try:
        answer = json.loads(out.decode("utf-8", "replace").strip().rpartition("\n")[2])
    except ValueError:
        last = "" if died_by_signal(child.returncode) else _last_words(words)
        return TrialOutcome(cause=last or describe_exit(child.returncode))
    return TrialOutcome(
        getattr(errors, answer["kind"])(answer["error"], hint=answer["hint"]) if answer else None
    )


def _said(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes] | None:
    """The child's output; a child that takes too long is killed and this is None. Raises Stopped."""
    stop, deadline = heeded(), time.monotonic() + _SECONDS
    with child:
        try:
            while (left := deadline - time.monotonic()) > 0:
                if stop:
                    stop.check()
                with suppress(subprocess.TimeoutExpired):
                    return child.communicate(timeout=min(left, _LOOK_SECONDS))
            return None
        finally:
            child.kill()


def died_by_signal(exit_code: int | None) -> bool:
    return exit_code is not None and (exit_code < 0 or exit_code >= _CRASHED_ON_WINDOWS)


def describe_exit(exit_code: int) -> str:
    """An exit code in words: a negative one is a signal on POSIX."""
    if exit_code >= _CRASHED_ON_WINDOWS:
        return f"exception {exit_code:#x}"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
    return f"{name}, out of memory perhaps" if name == "SIGKILL" else name


def _last_words(stderr: bytes) -> str:
    """The last words of llama.cpp or Python."""
    text = stderr.decode("utf-8", "replace").strip()
    if found := re.search(r"^error: (.+)", text, re.MULTILINE):
        return found[1].removeprefix("llama.cpp aborted: ").rstrip(".")
    return text.rpartition("\n")[2]


LARGEST_FILE = 64 << 20  # bytes: the caches of GPU drivers are smaller


def limit_this_process(*, largest_file: int | None = LARGEST_FILE) -> None:
    """No core dump, no larger file, no more private memory than the machine has; lower limits stay.

    Address space has no limit: a GPU driver reserves more of it than any machine has. Windows has no limits.
    """
    if sys.platform == "win32":
        return
    import resource

    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: largest_file,
        resource.RLIMIT_DATA: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        if limit is not None:
            lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            with suppress(OSError, ValueError):  # a system may refuse to limit one of them
                resource.setrlimit(kind, (lowest, lowest))
