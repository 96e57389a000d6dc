"""A model file that was never loaded here decodes its first tokens in a child process.

llama.cpp aborts on some damaged or hostile files; then the child ends, and the user gets a sentence.
"""

import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from localspec import errors
from localspec.errors import BadModelFile, LocalspecError, NotEnoughMemory
from localspec.models import stamps
from localspec.models.build import installed_build
from localspec.models.facts import header_at
from localspec.models.hazards import first_hazard
from localspec.models.units import printable, size_text

_HINT = "fetch it again, or use another file"
_SECONDS = 120.0
_BYTES_PER_SECOND = 20e6  # the slowest disk that a model may lie on


def ensure_loadable(path: Path, gpu_layers: int | None = None) -> None:
    """Return at once for a file that decoded here before and has not changed; else try it in a child process.

    gpu_layers: as it will be loaded. Raises BadModelFile, or what loading the file raises.
    """
    build = _build(gpu_layers)
    known = stamps.read(path)
    if known is not None and build in known.decoded_with:
        return
    header = header_at(path)
    if hazard := first_hazard(header):
        raise BadModelFile(f"{path.name} {printable(hazard)}", hint=_HINT)
    over = threading.Event()

    def stop_when_over(_: int) -> None:
        if over.is_set():
            raise CancelledError

    with ThreadPoolExecutor(1) as beside:
        try:
            # The child reads the same bytes, so that hashing them meanwhile costs next to nothing.
            hashed = None if known else beside.submit(stamps.sha256_of, path, stop_when_over)
            _try_in_child(path, gpu_layers)
            with suppress(OSError):  # without a place for the stamp the file is tried again the next time
                stamps.mark_decoded(known or stamps.write(path, hashed.result() if hashed else ""), build)
        finally:
            over.set()  # leaving the pool waits for its thread, and nobody waits for a hash that has no use


def _try_in_child(path: Path, gpu_layers: int | None) -> None:
    """On the CPU where the GPU is too small for all of it: the memory plan may still find a way."""
    try:
        _decode_in_child(path, gpu_layers)
    except NotEnoughMemory:
        if gpu_layers == 0:
            raise
        _decode_in_child(path, 0)


def _decode_in_child(path: Path, gpu_layers: int | None) -> None:
    command = [sys.executable, "-P", "-m", "localspec.llama.first_decode", str(path)]
    limit = _SECONDS + path.stat().st_size / _BYTES_PER_SECOND
    # Nothing is ever written: the child ends when the pipe does, so also when this process is killed.
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [*command, *([] if gpu_layers is None else [str(gpu_layers)])],
            stdin=reader,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadModelFile(
            f"{path.name} ({size_text(path.stat().st_size)}) did not decode a token in {limit:.0f} s",
            hint=_HINT,
        ) from None
    finally:
        os.close(reader)
        os.close(writer)
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
    except ValueError:
        raise BadModelFile(f"llama.cpp gives up on {path.name}{_reason(done)}", hint=_HINT) from None
    if answer:
        kind = getattr(errors, answer["kind"], LocalspecError)
        raise kind(answer["error"], hint=answer["hint"])


def _reason(done: "subprocess.CompletedProcess[bytes]") -> str:
    """What the child said before it ended, as the end of a sentence."""
    text = done.stderr.decode("utf-8", "replace")
    if found := re.search(r"^error: (.+)", text, re.MULTILINE):
        return f": {found[1].removeprefix('llama.cpp aborted: ').rstrip('.')}"
    return f" (the trial process ended with {done.returncode})"


def _build(gpu_layers: int | None) -> str:
    """What a successful decode was successful with."""
    build = installed_build()
    return f"{build}, CPU" if gpu_layers == 0 else build
