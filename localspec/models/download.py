"""Pulls a pair: pinned, checked by its headers first, resumed after interruptions, every byte hashed."""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.display import size_text
from localspec.errors import BadModelFile, DownloadFailed, IncompatiblePair
from localspec.gguf.header import Header, header_of_part, joined, read_header
from localspec.gguf.matching import check
from localspec.models import hub, places
from localspec.models.hub import RemoteFile, of_system
from localspec.models.partial_file import PartialFile, PullStage, partial_bytes, pull_lock
from localspec.models.places import ModelFile
from localspec.models.registry import Pair

_POLL_SECONDS = 0.2
_REPORT_SECONDS = 0.1  # between two reports


class PullCancelled(DownloadFailed):
    """The user stopped the pull; the bytes so far stay."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How far a pull is."""

    stage: PullStage
    file: str
    done: int  # bytes, of all files to fetch
    total: int
    bytes_per_second: float
    seconds_left: float | None  # None: not known yet


PullEvent = Fetching | str  # a sentence for the user
OnProgress = Callable[[PullEvent], None]


def bytes_to_fetch(pair: Pair) -> int:
    """The bytes that a pull would fetch; a file that another program has is only hashed."""
    absent = (file for file in pair.hub_files if not (file.path or places.cached_copies(file)))
    return sum(file.bytes - partial_bytes(file) for file in absent)


def fetch(
    pair: Pair,
    on_progress: OnProgress = lambda _: None,
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Path, ...]:
    """Fetch the missing files of a pair and return all of its files, the target first.

    Raises DownloadFailed, PullCancelled, IncompatiblePair or BadModelFile.
    """
    with hub.known_to_be_there():
        return _Pull(pair, on_progress, cancelled).run()


class _Pull:
    """One call of `fetch`."""

    def __init__(self, pair: Pair, progress: OnProgress, cancelled: Callable[[], bool]) -> None:
        self._pair, self._tell, self._cancelled = pair, progress, cancelled
        self._done = dict.fromkeys(pair.hub_files, 0)  # bytes that are here
        self._began = 0.0  # to fetch
        self._fetched = 0  # bytes since then
        self._last = -1.0

    def _at(self, stage: PullStage, file: ModelFile, done: int) -> None:
        """`done` bytes of a file are here: reported a few times a second, with all files of the pull.

        Raises PullCancelled.
        """
        if self._cancelled():
            raise PullCancelled(f"stopped before {file.name} was complete", hint="the bytes so far are kept")
        gained, self._done[file] = done - self._done.get(file, 0), done
        now = time.monotonic()
        if stage is PullStage.FETCHING:
            self._fetched += max(gained, 0)
            self._began = self._began or now
        if done < file.bytes and now - self._last < _REPORT_SECONDS:
            return
        self._last = now
        rate = self._fetched / (now - self._began) if 0 < self._began < now else 0.0
        so_far, total = sum(self._done.values()), sum(each.bytes for each in self._done)
        left = (total - so_far) / rate if rate else None
        self._tell(Fetching(stage, file.name, so_far, total, rate, left))

    def run(self) -> tuple[Path, ...]:
        try:
            while missing := self._missing():  # again after a round: somebody may remove a file
                lock = pull_lock()
                while not lock.try_acquire():
                    self._at(PullStage.WAITING, missing[0], partial_bytes(missing[0]))
                    time.sleep(_POLL_SECONDS)
                try:
                    if missing := self._missing():
                        self._fetch(missing)
                finally:
                    lock.release()
        except OSError as error:
            raise of_system(error, self._pair.name) from error
        return tuple(self._path(file) for file in self._pair.files)

    def _missing(self) -> list[ModelFile]:
        return [file for file in self._pair.hub_files if not self._is_verified(file)]

    def _fetch(self, missing: list[ModelFile]) -> None:
        self._done = dict.fromkeys(missing, 0)
        remotes = [self._look(file) for file in missing]
        check_space(places.models_dir(), sum(file.bytes - partial_bytes(file) for file in missing))
        with ExitStack() as opened:
            parts = {}
            for file, remote in zip(missing, remotes, strict=True):
                parts[file] = PartialFile(file, remote, self._at)
                opened.callback(parts[file].close)
                parts[file].take_up()
            self._prove(parts)
            for file, part in parts.items():
                self._finish(file, part)

    def _is_verified(self, file: ModelFile) -> bool:
        """Whether the file is here with the right hash; a damaged one of ours is removed."""
        fetched = file.place
        if fetched.is_file():
            found = self._hash(fetched, file)
            if found == file.sha256:
                return True
            wrong = f"sha256 {found}, pinned is {file.sha256}"
            if not places.is_ours(fetched):
                raise BadModelFile(
                    f"{fetched} is damaged: its {wrong}",
                    hint="a link leads to its folder, so localspec does not remove it: remove the file, and pull again",
                )
            fetched.unlink()
            places.forget_sha256(fetched)
            self._tell(f"{file.name} was damaged and is removed: {wrong}.")
        return any(self._hash(path, file) == file.sha256 for path in places.cached_copies(file))

    def _hash(self, path: Path, file: ModelFile) -> str:
        if known := places.known_sha256(path):
            return known

        found = places.hash_file(path, lambda done: self._at(PullStage.HASHING, file, done))
        if found == file.sha256:
            self._tell(f"{file.name}: sha256 verified")
        return found

    def _look(self, file: ModelFile) -> RemoteFile:
        """The Hub's present file under the pin. Raises for another one than the pinned."""
        remote, change = hub.look(file.repo, file.file, file.revision), ""
        if remote.bytes != file.bytes:
            change = f"its size is {remote.bytes:,} bytes, pinned is {file.bytes:,}"
        elif remote.sha256 not in (None, file.sha256):
            change = f"its sha256 is {remote.sha256}, pinned is {file.sha256}"
        if change:
            raise DownloadFailed(
                f"{remote.name} was replaced: {change}",
                hint="nothing was fetched; `localspec pairs add` can pin the new file under another name",
            )
        return remote

    def _prove(self, parts: dict[ModelFile, PartialFile]) -> None:
        """Fetch the headers of both models and check the pair; files that cannot run are not kept."""
        by_place = {part.final: part for part in parts.values()}
        try:
            headers = [self._header(file, by_place) for file in self._pair.files]
            check(headers, [file.name for file in self._pair.files])
        except (BadModelFile, IncompatiblePair):
            for part in parts.values():
                part.restart()
            raise
        if any(part.fetched for part in parts.values()):  # else an earlier pull has reported it
            self._tell("target and draft fit each other")

    def _header(self, file: ModelFile, parts: dict[Path, PartialFile]) -> Header:
        if not file.repo:
            return file.header
        headers = []
        for single in (replace(file, rest=()), *file.rest):
            part = parts.get(single.place)
            headers.append(
                read_header(part.read, part.remote.bytes, label=part.remote.name)
                if part
                else header_of_part(self._path(single))
            )
        return joined(Path(file.name), headers) if file.rest else headers[0]

    def _finish(self, file: ModelFile, part: PartialFile) -> None:
        found = part.fetch_rest()
        if found != file.sha256 and part.resumed_from:
            self._tell(f"An interruption damaged {file.name}: fetching it again.")
            part.restart()
            found = part.fetch_rest()
        if found != file.sha256:
            part.restart()
            raise DownloadFailed(
                f"{part.remote.name} came damaged and was removed: sha256 {found}, pinned is {file.sha256}",
                hint="try again; if it happens twice, something changes the file on its way",
            )
        part.publish()
        places.remember_sha256(part.final, file.sha256)
        fetched = f"{size_text(part.fetched)} fetched, " if part.fetched else ""
        self._tell(f"{file.name}: {fetched}sha256 verified")

    def _path(self, file: ModelFile) -> Path:
        if path := file.path:
            return path
        raise absent(self._pair, file)


def absent(pair: Pair, file: ModelFile) -> BadModelFile:
    """The error for a file of the user's own that is gone."""
    return BadModelFile(
        f"{pair.name} needs {file.file}, which does not exist",
        hint="put it there, or write the pair again: `localspec pairs add`",
    )


def check_space(folder: Path, needed: int) -> None:
    """Raises DownloadFailed unless `needed` bytes and a margin fit into the folder's file system."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    with_margin = needed + max(32_000_000, needed // 100)
    free = shutil.disk_usage(existing).free
    if needed and free < with_margin:
        raise DownloadFailed(
            f"{folder} needs {size_text(with_margin)} free and has {size_text(free)}",
            hint="make room, or set LOCALSPEC_HOME to a folder on a larger disk",
        )
