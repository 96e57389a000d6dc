"""A model file that was never loaded here decodes its first tokens in a child process.

llama.cpp aborts on some damaged or hostile files; then the child ends, and the user gets a sentence.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from localspec.errors import BadModelFile
from localspec.gguf.facts import first_hazard
from localspec.gguf.header import header_at, parts_of
from localspec.health.build import installed_build
from localspec.health.check import fault_of_build, health, switch_off_extra_buffers
from localspec.health.gpu import GPU_WIDTHS
from localspec.health.servers import used_servers
from localspec.health.trial import HeadTrial, Trial, TrialOutcome, decode_in_child
from localspec.pairs import stamps
from localspec.stopping import heeded
from localspec.units import printable, size_text

_HINT = "fetch it again, or use another file"
_HINT_ON_GPU = f"{_HINT}; or try --flash-attn off, or leave the GPU alone: --device CPU"


def refuse_hazards(path: Path) -> None:
    """Raise BadModelFile for a header that llama.cpp would abort on; a file that decoded here has none."""
    known = map(stamps.read, parts_of(path))
    if all(stamp is not None and stamp.decoded_with for stamp in known):
        return
    if hazard := first_hazard(header_at(path)):
        raise BadModelFile(f"{path.name} {printable(hazard)}", hint=_HINT)


def ensure_loadable(
    path: Path,
    place: Mapping[str, Any] = MappingProxyType({}),
    lora: Sequence[tuple[Path, float]] = (),
    head: HeadTrial | None = None,
    flash_attn: str = "auto",
    on_stage: Callable[[str], object] = lambda stage: None,
) -> None:
    """Return at once for a file that decoded here before and has not changed; else try it in a child process.

    place, flash_attn: what Model and Context take of it, as it will be loaded; lora: adapters that go with it;
    head: what guesses then; on_stage hears how much of a new file is read.
    Raises BadModelFile, or what loading the files raises.
    """
    build = _build(place) + (f", with {Path(head.path).name or 'its head'}" if head else "")
    in_a_file = [Path(head.path)] if head and head.path else []
    files = (*parts_of(path), *in_a_file, *(adapter for adapter, _ in lora))
    known = {file: stamps.read(file) for file in files}
    if all(stamp is not None and build in stamp.decoded_with for stamp in known.values()):
        return
    refuse_hazards(path)
    over, stop = threading.Event(), heeded()

    new = [file for file, stamp in known.items() if stamp is None]
    total, done = sum(file.stat().st_size for file in new), 0
    trying = f"trying {path.name} for the first time"
    on_stage(trying)

    def stop_when_over(count: int) -> None:
        nonlocal done
        if over.is_set() or (stop and stop.asked):
            raise CancelledError
        before, done = done, done + count
        if before * 100 // total != done * 100 // total:
            on_stage(f"{trying}: {done / total:.0%} of {size_text(total)} read")

    with ThreadPoolExecutor(1) as beside:
        try:
            # The child reads the same bytes, so that hashing them meanwhile costs next to nothing.
            hashes = {file: beside.submit(stamps.sha256_of, file, stop_when_over) for file in new}
            _decode(path, place, lora, head, flash_attn)
            with suppress(OSError):  # without a place for the stamp the file is tried again the next time
                for file, stamp in known.items():
                    stamps.mark_decoded(stamp or stamps.write(file, hashes[file].result()), build)
        finally:
            over.set()  # leaving the pool waits for its thread, and nobody waits for a hash that has no use


def _decode(
    path: Path,
    place: Mapping[str, Any],
    lora: Sequence[tuple[Path, float]],
    head: HeadTrial | None,
    flash_attn: str = "auto",
) -> None:
    trial = Trial(
        str(path),
        dict(place),
        tuple((str(adapter), scale) for adapter, scale in lora),
        tuple(map(str, parts_of(path)[1:])),
        used_servers(),
        health().extra_buffers,
        flash_attn,
        head=head,
    )
    if on_gpu := place.get("gpu_layers") != 0 and bool({*(place.get("devices") or ())} - {"CPU"}):
        trial = replace(trial, widths=GPU_WIDTHS)
    outcome = decode_in_child(trial)
    if outcome.error:
        raise outcome.error
    if outcome.passed or _works_without_extra_buffers(trial, outcome):
        return
    if outcome.exit_code is None:
        raise BadModelFile(
            f"{path.name} ({size_text(path.stat().st_size)}) did not decode a token in {trial.seconds:.0f} s",
            hint="try again where the machine was busy, else use another file",
        )
    if fault := fault_of_build(trial):
        raise fault
    tried = f"{path.name} with {Path(head.path).name or 'the head inside it'}" if head else path.name
    raise BadModelFile(
        f"llama.cpp gives up on {tried}: {outcome.cause}", hint=_HINT_ON_GPU if on_gpu else _HINT
    )


def _works_without_extra_buffers(trial: Trial, outcome: TrialOutcome) -> bool:
    """Whether only these killed the child; then they stay off, for other files as well."""
    if not (trial.extra_buffers and outcome.died_by_signal):
        return False
    works = decode_in_child(replace(trial, extra_buffers=False)).passed
    if works:
        switch_off_extra_buffers(outcome.cause)
    return works


def _build(place: Mapping[str, Any]) -> str:
    """What a successful decode was successful with."""
    devices = ["CPU"] if place.get("gpu_layers") == 0 else place.get("devices")
    return installed_build() if devices is None else f"{installed_build()}, {', '.join(devices) or 'CPU'}"
