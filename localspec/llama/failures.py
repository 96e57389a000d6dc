"""Translates llama.cpp's return codes and log lines into the error tree."""

import re
from collections.abc import Sequence
from pathlib import Path

from localspec.errors import (
    ANOTHER_COPY,
    BackendFailure,
    BadModelFile,
    ContextFull,
    LocalspecError,
    NotEnoughMemory,
)
from localspec.health.stopping import Stopped

_MEMORY = re.compile(
    r"failed to allocate|unable to allocate|allocation failed|out of memory|bad_alloc|cudaMalloc"
    r"|not enough memory|failed to reserve|cannot allocate memory",
    re.IGNORECASE,
)
_ARCHITECTURE = re.compile(r"unknown model architecture: '([^']*)'")
_WHERE = re.compile(r"^(?:[\w:~]+: |error loading model: |failed to load model: )+")
_MEMORY_HINT = (
    "use a smaller model or quantisation, a shorter context (--context), or fewer GPU layers (--gpu-layers)"
)


def load_failure(path: Path, log: Sequence[str]) -> LocalspecError:
    """Why llama.cpp would not load a file, beyond what its header shows."""
    text = "\n".join(log)
    if found := _ARCHITECTURE.search(text):
        return BadModelFile(
            f"{path.name} is a model of architecture {found[1]!r}, which this llama.cpp does not know",
            hint="a newer llama-cpp-python may: pip install --upgrade llama-cpp-python",
        )
    if _MEMORY.search(text):
        return NotEnoughMemory(f"not enough memory to load {path.name}: {reason(log)}", hint=_MEMORY_HINT)
    return BadModelFile(f"llama.cpp cannot load {path.name}: {reason(log)}", hint=ANOTHER_COPY)


def context_failure(name: str, length: int, log: Sequence[str]) -> LocalspecError:
    """Why llama.cpp could not make a context; without a reason in its log it is usually memory."""
    if not log or _MEMORY.search("\n".join(log)):
        return NotEnoughMemory(
            f"not enough memory for a context of {length} tokens on {name}: {reason(log)}", hint=_MEMORY_HINT
        )
    return BackendFailure(
        f"llama.cpp cannot make a context for {name}: {reason(log)}",
        hint="try another cache type (--kv-type f16) and a shorter context (--context)",
    )


def decode_failure(code: int, log: Sequence[str]) -> LocalspecError:
    """The error for a return code of llama_decode other than 0."""
    if code == 1:
        return ContextFull(
            "llama.cpp found no room in the cache for the batch", hint="use a longer context (--context)"
        )
    if code == 2:
        return Stopped()
    if code == -1:
        return BackendFailure(
            f"llama.cpp refused the batch: {reason(log)}",
            hint="the tokens may belong to another model's vocabulary",
        )
    if code == -2 or _MEMORY.search("\n".join(log)):
        return NotEnoughMemory(
            f"llama.cpp ran out of memory while decoding: {reason(log)}", hint=_MEMORY_HINT
        )
    return BackendFailure(
        f"llama.cpp failed to decode (code {code}): {reason(log)}",
        hint="check the driver and free device memory; `localspec doctor` shows both",
    )


def reason(log: Sequence[str]) -> str:
    """The first error line without the names of C functions: later ones repeat it from further out."""
    return _WHERE.sub("", log[0]) if log else "it gave no reason"
