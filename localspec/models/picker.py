"""Pairs for the chat: a list with this machine's facts about each, and pulls with progress."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.files import read_numbers, remember_number
from localspec.health.devices import last_devices
from localspec.models import download
from localspec.models.inspection import Fit, file_bytes, fit, memory_needed
from localspec.models.registry import all_pairs, named
from localspec.options import data_dir

LADDER = ("qwen3-32b+0.6b", "qwen3-14b+0.6b", "qwen3-8b+0.6b", "qwen3-4b+0.6b")  # of docs/which-pair.md


@dataclass(frozen=True, slots=True)
class PairRow:
    """A pair in the picker."""

    name: str
    use: str  # its purpose
    size_bytes: int  # of all its files
    memory_bytes: int  # approximate memory
    on_disk: bool
    fits: Fit
    speedup: float | None = None  # decode speed relative to plain, measured on this machine by a comparison
    published: str = ""  # what others measured
    recommended: bool = False  # for this machine, to chat


def listing() -> tuple[PairRow, ...]:
    """Every known pair: on this machine, recommended, then by how it fits. Raises BadSetting for a damaged registry."""
    devices, speedups = last_devices(), measured_speedups()
    rows = [
        PairRow(
            name=pair.name,
            use=pair.use,
            size_bytes=file_bytes(pair),
            memory_bytes=memory_needed(pair),
            on_disk=pair.on_disk,
            fits=fit(pair, devices),
            speedup=speedups.get(pair.name),
            published=" · ".join(pair.published),
        )
        for pair in all_pairs()
    ]
    best = recommended({row.name: row.fits for row in rows})
    rows = [replace(row, recommended=row.name == best) for row in rows]
    fits = list(Fit)
    return tuple(
        sorted(
            rows,
            key=lambda row: (not row.on_disk, not row.recommended, fits.index(row.fits)),
        )
    )


def recommended(fits: Mapping[str, Fit]) -> str:
    """The largest pair to chat with that a GPU holds; on the CPU, where a large one is slow, the smallest."""
    held = (name for name in LADDER if fits.get(name) is Fit.GPU)
    smallest = LADDER[-1] if fits.get(LADDER[-1], Fit.NO) is not Fit.NO else ""
    return next(held, smallest)


def size(name: str) -> int:
    """Bytes of a pair's files that are not here. Raises UnknownPair."""
    return download.bytes_to_fetch(named(name))


def pull(name: str, on_bytes: Callable[[int, int], object], cancelled: Callable[[], bool]) -> None:
    """Fetch a pair; `on_bytes` gets how many bytes are here, and of how many. Raises as `download.fetch` does."""

    def report(event: download.PullEvent) -> None:
        if isinstance(event, download.Fetching):
            on_bytes(event.done, event.total)

    download.fetch(named(name), report, cancelled=cancelled)


def measured_speedups() -> dict[str, float]:
    """Measured speed-ups by pair, without damaged entries."""
    return read_numbers(_speedups_file(), most=1e6)


def remember_speedup(name: str, speedup: float) -> None:
    """Keep a measured speed-up for the picker."""
    remember_number(_speedups_file(), name, round(speedup, 3))


def _speedups_file() -> Path:
    return data_dir() / "speedups.json"
