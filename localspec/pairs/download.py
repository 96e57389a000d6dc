"""Fetching a pair: pinned, proved from its headers first, resumed after interruptions, every byte hashed."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from localspec.errors import BadModelFile, DownloadFailed, IncompatiblePair
from localspec.gguf.header import Header, header_of_part, joined, read_header
from localspec.hub import repository as hub
from localspec.hub.failures import RevisionGone, of_system
from localspec.hub.partial import PartialFile, PullCancelled, lock_of, part_of
from localspec.hub.progress import FileReady, Note, OnProgress, Proved, PullEvent, PullStage, TransferRate
from localspec.hub.repository import Patience, RemoteFile
from localspec.hub.side_by_side import side_by_side
from localspec.locks import FileLock
from localspec.pairs import stamps, store
from localspec.pairs.compatibility import prove
from localspec.pairs.registry import HubFile, ModelFile, Pair
from localspec.pairs.resolve import refuse_unless_runnable
from localspec.units import size_text

_POLL_SECONDS = 0.2
_T = TypeVar("_T")
_ByPlace = dict[Path, _T]  # by where a file will lie, which is equal for equal files


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """What a pull would do about one file."""

    name: str
    bytes: int
    here: Path | None  # where it lies already, whole
    cached: bool  # another program has it, and it only has to be hashed
    partial: int  # bytes that an earlier pull left

    @property
    def to_fetch(self) -> int:
        return 0 if self.here or self.cached else self.bytes - self.partial


def plan_pull(pair: Pair) -> tuple[PlannedFile, ...]:
    """What is here and what would be fetched, without asking anybody."""
    return tuple(_planned(file) for file in _single_files(pair))


def pull(
    pair: Pair,
    *,
    progress: OnProgress = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    patience: Patience | None = None,
) -> tuple[Path, ...]:
    """Fetch what is missing of a pair and return its files, the target first.

    Raises DownloadFailed, PullCancelled, UnknownPair, IncompatiblePair or BadModelFile.
    """
    refuse_unless_runnable(pair)
    return _Pull(pair, progress, cancelled, patience or Patience()).run()


class _Pull:
    """One call of `pull`."""

    def __init__(
        self, pair: Pair, progress: OnProgress, cancelled: Callable[[], bool], patience: Patience
    ) -> None:
        self._pair, self._tell, self._is_cancelled, self._patience = pair, progress, cancelled, patience
        self._telling = threading.Lock()
        self._stopped = threading.Event()  # another file has failed
        self._wanted = _single_files(pair)
        self._meter = TransferRate(self._progress, sum(file.bytes for file in self._wanted))

    def _progress(self, event: PullEvent) -> None:
        with self._telling:
            self._tell(event)

    def _cancelled(self) -> bool:
        return self._stopped.is_set() or self._is_cancelled()

    def run(self) -> tuple[Path, ...]:
        try:
            while missing := self._missing(self._wanted):  # again where another process removed one meanwhile
                with ExitStack() as held:
                    locks = self._lock(missing, held)
                    if missing := self._missing(missing):
                        self._fetch(missing, locks)
        except OSError as error:
            raise of_system(error, self._pair.name) from error
        return tuple(self._path(file) for file in self._pair.files)

    def _missing(self, files: Sequence[HubFile]) -> list[HubFile]:
        return [file for file in files if self._verified(file) is None]

    def _fetch(self, missing: list[HubFile], locks: _ByPlace[FileLock]) -> None:
        if hub.offline():
            raise DownloadFailed(
                f"{missing[0].name} is not on this machine, and HF_HUB_OFFLINE is set",
                hint="unset it to fetch files",
            )
        self._meter = TransferRate(self._progress, sum(file.bytes for file in missing))
        remotes = [self._look(file) for file in missing]
        check_space(
            store.models_dir(), sum(file.bytes - _size(part_of(store.place(file))) for file in missing)
        )
        with ExitStack() as opened:
            parts: _ByPlace[PartialFile] = {
                store.place(file): opened.enter_context(self._part(file, remote))
                for file, remote in zip(missing, remotes, strict=True)
            }
            self._prove(parts)

            def fetch(file: HubFile) -> None:
                place = store.place(file)
                parts[place].fetch_rest()
                self._finish(file, parts[place])
                locks[place].release()

            side_by_side(fetch, missing, self._stopped)

    def _verified(self, file: HubFile) -> Path | None:
        """The file if it is here, hashed unless it was hashed before; a damaged one of ours is removed."""
        fetched = store.place(file)
        if fetched.is_file():
            found = self._hash(fetched, file)
            if found == file.sha256:
                return fetched
            if not store.is_ours(fetched):
                raise BadModelFile(
                    f"{fetched} is damaged: its sha256 is {found}, pinned is {file.sha256}",
                    hint="a link leads to its folder, so it was left alone; remove it, and pull again",
                )
            fetched.unlink()
            stamps.forget(fetched)
            self._progress(
                Note(f"{file.name} was damaged and is removed: sha256 {found}, pinned is {file.sha256}.")
            )
        return next(
            (path for path in store.cached_copies(file) if self._hash(path, file) == file.sha256), None
        )

    def _hash(self, path: Path, file: HubFile) -> str:
        known = stamps.read(path)
        if known is None:

            def on_bytes(count: int) -> None:
                self._stop_if_cancelled(file)
                self._meter.add(PullStage.HASHING, file.name, count, file.bytes)

            known = stamps.write(path, stamps.sha256_of(path, on_bytes))
            self._meter.forget(file.name)
            if known.sha256 == file.sha256:
                self._progress(FileReady(file.name, path, 0))
        return known.sha256

    def _lock(self, files: list[HubFile], held: ExitStack) -> _ByPlace[FileLock]:
        """Locks on the files, taken in one order by everybody so that two pulls never wait for each other."""
        locks: _ByPlace[FileLock] = {}
        for file in sorted(files, key=lambda file: file.sha256):
            lock = lock_of(store.place(file))
            while not lock.try_acquire_where_possible():
                self._stop_if_cancelled(file)
                self._progress_of_others(file)
                time.sleep(_POLL_SECONDS)
            held.callback(lock.release)
            locks[store.place(file)] = lock
        return locks

    def _look(self, file: HubFile) -> RemoteFile:
        """What the Hub has under the pin now; raises when it is not what was pinned."""
        try:
            remote = hub.look(file.repo, file.file, file.revision, self._patience)
        except RevisionGone:
            remote = hub.look(file.repo, file.file, patience=self._patience)
            if remote.sha256 != file.sha256:
                raise
            self._progress(
                Note(f"The pinned revision of {file.name} is gone; the newest one has the same file.")
            )
        if remote.bytes != file.bytes:
            raise DownloadFailed(
                f"{remote.name} was replaced: it has {remote.bytes:,} bytes, pinned are {file.bytes:,}",
                hint="nothing was fetched; `localspec pairs add` can pin the new file under a name of yours",
            )
        if remote.sha256 not in (None, file.sha256):
            raise DownloadFailed(
                f"{remote.name} was replaced: its sha256 is {remote.sha256}, pinned is {file.sha256}",
                hint="nothing was fetched; `localspec pairs add` can pin the new file under a name of yours",
            )
        return remote

    @contextmanager
    def _part(self, file: HubFile, remote: RemoteFile) -> Iterator[PartialFile]:
        part = PartialFile(
            store.place(file),
            remote,
            on_bytes=lambda stage, count: self._meter.add(stage, file.name, count, file.bytes),
            cancelled=self._cancelled,
            patience=self._patience,
        )
        try:
            yield part
        finally:
            part.close()

    def _prove(self, parts: _ByPlace[PartialFile]) -> None:
        """Fetch the heads of both files and check the pair; what cannot run is not kept."""
        try:
            headers = [self._header(file, parts) for file in self._pair.files]
            target, draft = headers[0], headers[1] if len(headers) > 1 else None
            prove(target, draft)
        except (BadModelFile, IncompatiblePair):
            for part in parts.values():
                part.discard()
            raise
        if any(part.fetched for part in parts.values()):  # else an earlier pull has told it
            self._progress(Proved(target, draft))

    def _header(self, file: ModelFile, parts: _ByPlace[PartialFile]) -> Header:
        if isinstance(file, HubFile) and file.rest:
            singles = [replace(file, rest=()), *file.rest]
            return joined(Path(file.name), [self._header(single, parts) for single in singles])
        part = parts.get(store.place(file)) if isinstance(file, HubFile) else None
        if part is not None:
            return read_header(part.read, part.remote.bytes, label=part.remote.name)
        return header_of_part(self._path(file))  # of a part too: what is joined are single headers

    def _finish(self, file: HubFile, part: PartialFile) -> None:
        if part.sha256() != file.sha256 and part.resumed_from:
            self._progress(Note(f"{file.name} did not survive an interruption whole: fetching it again."))
            self._meter.forget(file.name)
            part.restart()
            part.fetch_rest()
        if part.sha256() != file.sha256:
            part.discard()
            raise DownloadFailed(
                f"{part.remote.name} came damaged and was removed: "
                f"sha256 {part.sha256()}, pinned is {file.sha256}",
                hint="try again; if it happens twice, something changes the file on its way",
            )
        part.publish()
        stamps.write(part.final, file.sha256)
        self._progress(FileReady(file.name, part.final, part.fetched))

    def _path(self, file: ModelFile) -> Path:
        path = store.locate(file)
        if path is None:
            raise BadModelFile(
                f"{self._pair.name} needs {file.name}, which is not there",
                hint="put it there, or write the pair anew: `localspec pairs add`",
            )
        return path

    def _progress_of_others(self, file: HubFile) -> None:
        self._meter.forget(file.name)
        self._meter.add(PullStage.WAITING, file.name, _size(part_of(store.place(file))), file.bytes)
        self._meter.forget(file.name)

    def _stop_if_cancelled(self, file: HubFile) -> None:
        if self._cancelled():
            raise PullCancelled(f"stopped before {file.name} was complete", hint="what came so far is kept")


def check_space(folder: Path, needed: int) -> None:
    """Raises DownloadFailed unless `needed` bytes and a margin fit into the folder's file system."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    margin = max(32_000_000, needed // 100)
    free = shutil.disk_usage(existing).free
    if needed and free < needed + margin:
        raise DownloadFailed(
            f"{size_text(needed + margin)} are needed in {folder}, and {size_text(free)} are free",
            hint="make room, or set LOCALSPEC_HOME to a folder on a larger disk",
        )


def _single_files(pair: Pair) -> tuple[HubFile, ...]:
    """Every file to have, each once, and none for the others of its model."""
    singles = [file for file in store.distinct(pair.singles) if isinstance(file, HubFile)]
    return tuple(replace(file, rest=()) for file in singles)


def _planned(file: HubFile) -> PlannedFile:
    here = store.locate(file)
    partial = min(_size(part_of(store.place(file))), file.bytes)
    return PlannedFile(file.name, file.bytes, here, here is None and bool(store.cached_copies(file)), partial)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
