"""A model file that was never loaded here decodes its first tokens in a child process.

llama.cpp aborts on some damaged or hostile files; then the child ends, and the user gets a sentence.
"""

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from localspec.errors import BadModelFile, NotEnoughMemory
from localspec.health.build import installed_build
from localspec.health.check import fault_of_build, health, switch_off_extra_buffers
from localspec.health.servers import used_servers
from localspec.health.trial import Outcome, Trial, decode_in_child, time_limit
from localspec.models import stamps
from localspec.models.facts import header_at
from localspec.models.hazards import first_hazard
from localspec.models.units import printable, size_text

_HINT = "fetch it again, or use another file"


def ensure_loadable(path: Path, gpu_layers: int | None = None, device: str | None = None) -> None:
    """Return at once for a file that decoded here before and has not changed; else try it in a child process.

    gpu_layers, device: as it will be loaded. Raises BadModelFile, or what loading the file raises.
    """
    build = _build(gpu_layers, device)
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
            _try(path, gpu_layers, device)
            with suppress(OSError):  # without a place for the stamp the file is tried again the next time
                stamps.mark_decoded(known or stamps.write(path, hashed.result() if hashed else ""), build)
        finally:
            over.set()  # leaving the pool waits for its thread, and nobody waits for a hash that has no use


def _try(path: Path, gpu_layers: int | None, device: str | None) -> None:
    """On the CPU where the GPU is too small for all of it: the memory plan may still find a way."""
    try:
        _decode(path, gpu_layers, device)
    except NotEnoughMemory:
        if gpu_layers == 0:
            raise
        _decode(path, 0, None)


def _decode(path: Path, gpu_layers: int | None, device: str | None) -> None:
    trial = Trial(str(path), gpu_layers, device, used_servers(), health().extra_buffers)
    outcome = decode_in_child(trial)
    if outcome.error:
        raise outcome.error
    if outcome.passed or _works_without_extra_buffers(trial, outcome):
        return
    if outcome.exit_code is None:
        raise BadModelFile(
            f"{path.name} ({size_text(path.stat().st_size)}) did not decode a token in {time_limit(path):.0f} s",
            hint="try again where the machine was busy, else use another file",
        )
    if fault := fault_of_build(trial):
        raise fault
    raise BadModelFile(f"llama.cpp gives up on {path.name}: {outcome.cause}", hint=_HINT)


def _works_without_extra_buffers(trial: Trial, outcome: Outcome) -> bool:
    """Whether only these killed the child; then they stay off, for other files as well."""
    if not (trial.extra_buffers and outcome.died_by_signal):
        return False
    works = decode_in_child(replace(trial, extra_buffers=False)).passed
    if works:
        switch_off_extra_buffers(outcome.cause)
    return works


def _build(gpu_layers: int | None, device: str | None) -> str:
    """What a successful decode was successful with."""
    place = "CPU" if gpu_layers == 0 else device
    return f"{installed_build()}, {place}" if place else installed_build()
