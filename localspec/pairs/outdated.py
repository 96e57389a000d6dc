"""Pins that the Hub has newer files than."""

from dataclasses import dataclass

from localspec.errors import DownloadFailed, UnknownPair
from localspec.hub import repository as hub
from localspec.pairs import store
from localspec.pairs.registry import HubFile, all_pairs


@dataclass(frozen=True, slots=True)
class Newer:
    """What the Hub has now in the place of a pinned file."""

    pair: str
    file: HubFile
    bytes: int | None  # None: no file of that name any more

    @property
    def text(self) -> str:
        return f"{self.file.repo}:{self.file.file}"


def outdated() -> tuple[Newer, ...]:
    """One question to the Hub for each file of the pairs that are here. Raises DownloadFailed."""
    found = []
    for pair in filter(store.on_disk, all_pairs()):
        for file in pair.hub_files:
            try:
                remote = hub.look(file.repo, file.file)
            except UnknownPair:
                found.append(Newer(pair.name, file, None))
                continue
            if remote.sha256 is None:
                raise DownloadFailed(f"the Hub gives no sha256 for {remote.name}", hint="check HF_ENDPOINT")
            if remote.sha256 != file.sha256:
                found.append(Newer(pair.name, file, remote.bytes))
    return tuple(found)
