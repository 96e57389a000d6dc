"""Pairs for the picker: a list with this machine's facts about each, and pulls with progress."""

from pathlib import Path

from localspec.engine.messages import PairList, PairRow, Pulled, PullProgress
from localspec.engine.server import Cancelled, Send
from localspec.files import read_numbers, remember_number
from localspec.models.devices import last_devices
from localspec.models.download import Fetching, PullCancelled, PullEvent
from localspec.models.download import pull as fetch
from localspec.models.inspection import file_bytes, fit, memory_needed
from localspec.models.registry import all_pairs, find
from localspec.models.store import on_disk
from localspec.settings import data_dir


def listing() -> PairList:
    """Every known pair, those on this machine first. Raises BadSetting for a damaged registry."""
    devices, speedups = last_devices(), measured_speedups()
    rows = [
        PairRow(
            name=pair.name,
            use=pair.use,
            size_bytes=file_bytes(pair),
            memory_bytes=memory_needed(pair),
            on_disk=on_disk(pair),
            runnable=pair.runnable,
            fits=fit(pair, devices),
            speedup=speedups.get(pair.name),
            published=" · ".join(pair.published),
        )
        for pair in all_pairs()
    ]
    return PairList(tuple(sorted(rows, key=lambda row: (not row.on_disk, not row.runnable))))


def pull(name: str, send: Send, cancelled: Cancelled) -> None:
    """Fetch a pair; progress and the end are reported. Raises the errors of `pairs.download.pull`."""

    def report(event: PullEvent) -> None:
        if isinstance(event, Fetching):
            send(PullProgress(name, event.file, event.done, event.total))

    try:
        fetch(find(name), progress=report, cancelled=cancelled)
    except PullCancelled:
        send(Pulled(name, complete=False))
    else:
        send(Pulled(name, complete=True))


def measured_speedups() -> dict[str, float]:
    """By pair, how much faster than plain it was here; damaged entries are as if never measured."""
    return read_numbers(_speedups_file(), most=1e6)


def remember_speedup(name: str, speedup: float) -> None:
    """Keep a measured speed-up for the picker."""
    remember_number(_speedups_file(), name, round(speedup, 3))


def _speedups_file() -> Path:
    return data_dir() / "speedups.json"
