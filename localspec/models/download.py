"""Pull a pair: first check the headers of its pinned files, then fetch them, resume if interrupted, verify hashes."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from localspec.display import size_text
from localspec.errors import BadModelFile, DownloadFailed, IncompatiblePair, NotOnDisk
from localspec.files import rename, sync_folder
from localspec.gguf.header import Header, header_of_part, joined, read_header
from localspec.gguf.matching import check
from localspec.models import hub, local_models
from localspec.models.hub import RemoteFile, of_system
from localspec.models.local_models import ModelFile, part_of, pull_lock
from localspec.models.projector import check_projector
from localspec.models.registry import Pair

_HEAD = 4 << 20  # a request for a part of a header fetches at least this many bytes
_POLL_SECONDS = 0.2


class PullStage(StrEnum):
    WAITING = "waiting"  # another process is pulling
    HASHING = "hashing"  # this process is hashing bytes that are on this machine already
    FETCHING = "downloading"


def partial_bytes(file: ModelFile) -> int:
    return min(local_models.size_at(part_of(file.place)) or 0, file.bytes)


class PullCancelled(DownloadFailed):
    """The error of a pull that the user stopped. The partial files stay."""


@dataclass(frozen=True, slots=True)
class Fetching:
    stage: PullStage
    file: str
    done: int  # bytes that are on this machine, summed over all files
    total: int
    bytes_per_second: float
    seconds_left: float | None  # None until a speed is measured


PullEvent = Fetching | str  # a str is a notice


class PairNotOnDisk(NotOnDisk):
    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        to_fetch = bytes_to_fetch(pair)
        size = f"{size_text(to_fetch)} to download" if to_fetch else "another program has an unverified copy"
        hint = f"download it with: localspec pull {pair.name}"
        super().__init__(f"{pair.name} is not on this machine ({size})", hint=hint)


def check_here(pair: Pair) -> None:
    """Raise PairNotOnDisk if a Hub file is missing, BadModelFile if a user's file is gone or changed."""
    if pair.found:
        pair.found.check()
    for file in pair.files:
        if not file.path:
            raise PairNotOnDisk(pair) if file.repo else absent(pair, file)


def bytes_to_fetch(pair: Pair) -> int:
    """Return the bytes that a pull would download. A file that another program has is not downloaded again."""
    absent = (file for file in pair.hub_files if not (file.path or local_models.cached_copies(file)))
    return sum(file.bytes - partial_bytes(file) for file in absent)


def fetch(
    pair: Pair,
    on_progress: Callable[[PullEvent], object] = lambda event: None,
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Path, ...]:
    """Fetch the missing files of a pair; return the paths of all its files, the target first."""
    if gone := next((file for file in pair.files if not (file.repo or file.path)), None):
        raise absent(pair, gone)
    return _Pull(pair, on_progress, cancelled).run()


def fetch_projector(
    pair: Pair, projector: ModelFile, on_progress: Callable[[PullEvent], object] = lambda event: None
) -> Path:
    """Fetch the projector for images that was published with a pair's target, and return its path."""
    alone = replace(pair, target=projector, draft=None)
    return _Pull(alone, on_progress, bool, check=check_projector).run()[0]


class PartialFile:
    """A file with the first `size` bytes of a remote file, and the hash of these bytes."""

    def __init__(
        self, file: ModelFile, remote: RemoteFile, on_size: Callable[[PullStage, ModelFile, int], None]
    ) -> None:
        """Open the file. `on_size` is called with each new size; an error that it raises ends the pull."""
        self.file, self.final, self.path, self.remote = file, file.place, part_of(file.place), remote
        self.fetched = 0  # bytes that this process has downloaded
        self.size = self.resumed_from = 0
        self._on_size = on_size
        self.digest = hashlib.sha256()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise of_system(error, remote.name) from error

    def take_up(self) -> None:
        if os.fstat(self._file.fileno()).st_size > self.remote.bytes:
            self.restart()
        self._file.seek(0)
        while chunk := self._file.read(1 << 20):
            self._add(chunk, PullStage.HASHING)
        self.resumed_from = self.size

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on; fetch the missing bytes first."""
        if offset + length > self.size:
            self._extend(min(max(offset + length, self.size + _HEAD), self.remote.bytes))
        self._file.seek(offset)
        return self._file.read(length)

    def fetch_rest(self) -> str:
        self._extend(self.remote.bytes)
        return self.digest.hexdigest()

    def restart(self) -> None:
        self._file.truncate(0)
        self.digest = hashlib.sha256()
        self.size = self.resumed_from = 0

    def publish(self) -> None:
        """Give the whole, verified file its final name. Raises DownloadFailed."""
        assert self.size == self.remote.bytes, "only a whole file gets the final name"
        try:
            os.fsync(self._file.fileno())
            self.close()
            rename(self.path, self.final)
            sync_folder(self.final.parent)
        except OSError as error:
            raise of_system(error, self.remote.name) from error

    def close(self) -> None:
        """Close the file, and remove it if it is empty. A second call does nothing."""
        if not self._file.closed:
            self._file.close()
            if not self.path.stat().st_size:
                self.path.unlink(missing_ok=True)

    def _extend(self, end: int) -> None:
        import httpx2

        failures, renewed, reached = 0, False, self.size
        while self.size < end:
            self._on_size(PullStage.FETCHING, self.file, self.size)
            try:
                self._receive(end)
            except (httpx2.HTTPError, OSError) as error:
                if self.size > reached:
                    failures, renewed, reached = 0, False, self.size
                failures += 1
                status = getattr(getattr(error, "response", None), "status_code", None)
                if status == 416 and self.size:
                    self.restart()
                elif status in (401, 403) and not self.remote.with_token and not renewed:
                    renewed = True  # fetch a new address, because signed addresses expire
                    remote = self.remote
                    self.remote = hub.look(remote.repo, remote.file, remote.commit)
                else:
                    hub.wait(failures, error, self.remote.name)

    def _receive(self, end: int) -> None:
        import httpx2

        with hub.stream(self.remote, self.size, end) as (at, chunks):
            if at < self.size:  # the server ignored the requested range, and sends the whole file
                self.restart()
            for chunk in chunks:
                wanted = memoryview(chunk)[: self.remote.bytes - self.size]
                try:
                    written = 0
                    while written < len(wanted):
                        written += self._file.write(wanted[written:])
                except OSError as error:
                    raise of_system(error, self.remote.name) from error
                self.fetched += written
                self._add(wanted, PullStage.FETCHING)
                if self.size >= end:
                    return
        raise httpx2.RemoteProtocolError(f"it ended after {self.size:,} of {self.remote.bytes:,} bytes")

    def _add(self, chunk: bytes | memoryview, stage: PullStage) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)
        self._on_size(stage, self.file, self.size)


class _Pull:
    def __init__(
        self,
        pair: Pair,
        progress: Callable[[PullEvent], object],
        cancelled: Callable[[], bool],
        check: Callable[[Sequence[Header], Sequence[str]], object] = check,
    ) -> None:
        self._check = check
        self._pair, self._tell, self._cancelled = pair, progress, cancelled
        self._done = dict.fromkeys(pair.hub_files, 0)  # bytes of each file that are on the disk
        self._began = 0.0  # time.monotonic() when the first download began
        self._fetched = 0  # bytes downloaded since `_began`
        self._last = -1.0

    def _at(self, stage: PullStage, file: ModelFile, done: int) -> None:
        if self._cancelled():
            raise PullCancelled(f"stopped before {file.name} was complete", hint="pull again to resume")
        gained, self._done[file] = done - self._done.get(file, 0), done
        now = time.monotonic()
        if stage is PullStage.FETCHING:
            self._fetched += max(gained, 0)
            self._began = self._began or now
        if done < file.bytes and now - self._last < 0.1:  # at most ten events per second
            return
        self._last = now
        rate = self._fetched / (now - self._began) if 0 < self._began < now else 0.0
        so_far, total = sum(self._done.values()), sum(each.bytes for each in self._done)
        left = (total - so_far) / rate if rate else None
        self._tell(Fetching(stage, file.name, so_far, total, rate, left))

    def run(self) -> tuple[Path, ...]:
        try:
            # Look for missing files after each round, because another program may have removed one.
            while missing := self._missing():
                lock = pull_lock()
                while not lock.try_acquire():
                    self._at(PullStage.WAITING, missing[0], partial_bytes(missing[0]))
                    time.sleep(_POLL_SECONDS)
                with ExitStack() as held:
                    held.callback(lock.release)
                    if missing := self._missing():
                        self._fetch(missing, held)
        except OSError as error:
            raise of_system(error, self._pair.name) from error
        return tuple(file.here for file in self._pair.files)

    def _missing(self) -> list[ModelFile]:
        return [file for file in self._pair.hub_files if not self._is_verified(file)]

    def _fetch(self, missing: list[ModelFile], opened: ExitStack) -> None:
        self._done = dict.fromkeys(missing, 0)
        remotes, parts = [self._look(file) for file in missing], dict[ModelFile, PartialFile]()
        check_space(local_models.models_dir(), sum(file.bytes - partial_bytes(file) for file in missing))
        for file, remote in zip(missing, remotes, strict=True):
            parts[file] = PartialFile(file, remote, self._at)
            opened.callback(parts[file].close)
            parts[file].take_up()
        self._prove(parts)
        for file, part in parts.items():
            self._finish(file, part)

    def _is_verified(self, file: ModelFile) -> bool:
        """Return whether the file is here with its pinned hash; remove a damaged file that a pull fetched."""
        fetched = file.place
        if fetched.is_file():
            found = self._hash(fetched, file)
            if found == file.sha256:
                return True
            wrong = f"its sha256 is {found} instead of {file.sha256}"
            if not local_models.is_ours(fetched):
                hint = "delete this file yourself (localspec deletes nothing through a symbolic link), then pull again"
                raise BadModelFile(f"{fetched} is damaged: {wrong}", hint=hint)
            fetched.unlink()
            self._tell(f"{file.name} was damaged and is removed: {wrong}.")
        return any(self._hash(path, file) == file.sha256 for path in local_models.cached_copies(file))

    def _hash(self, path: Path, file: ModelFile) -> str:
        if stored := local_models.known_sha256(path):
            return stored
        digest = local_models.hash_file(path, lambda done: self._at(PullStage.HASHING, file, done))
        if digest == file.sha256:
            self._tell(f"{file.name}: sha256 verified")
        return digest

    def _look(self, file: ModelFile) -> RemoteFile:
        """Return a file as the Hub has it now. Raises DownloadFailed if the Hub's file differs from the pinned one."""
        remote = hub.look(file.repo, file.file, file.revision)
        if remote.bytes == file.bytes and remote.sha256 in (None, file.sha256):
            return remote
        change = f"its sha256 is {remote.sha256} instead of {file.sha256}"
        if remote.bytes != file.bytes:
            change = f"its size is {remote.bytes:,} bytes instead of {file.bytes:,}"
        what = f"{file.file} was replaced in {file.repo}, so nothing was downloaded: {change}"
        raise DownloadFailed(what, hint="add the new file as another pair with `localspec pairs add`")

    def _prove(self, parts: dict[ModelFile, PartialFile]) -> None:
        """Fetch and check the headers of target and draft. If the two do not fit, empty the partial files."""
        by_place = {part.final: part for part in parts.values()}
        try:
            headers = [self._header(file, by_place) for file in self._pair.files]
            self._check(headers, [file.name for file in self._pair.files])
        except (BadModelFile, IncompatiblePair):
            for part in parts.values():
                part.restart()
            raise
        if self._pair.draft and any(part.fetched for part in parts.values()):  # if not, already reported
            self._tell("target and draft fit each other")

    def _header(self, file: ModelFile, parts: dict[Path, PartialFile]) -> Header:
        if not file.repo:
            return file.header
        headers = []
        for single in (replace(file, rest=()), *file.rest):
            part = parts.get(single.place)
            if part:
                headers.append(read_header(part.read, part.remote.bytes, label=part.remote.name))
            else:
                headers.append(header_of_part(single.here))
        return joined(Path(file.name), headers) if file.rest else headers[0]

    def _finish(self, file: ModelFile, part: PartialFile) -> None:
        found = part.fetch_rest()
        if found != file.sha256 and part.resumed_from:
            self._tell(f"An interruption damaged {file.name}: downloading it again.")
            part.restart()
            found = part.fetch_rest()
        if found != file.sha256:
            part.restart()
            what = f"{part.remote.name} arrived damaged and was removed"
            hint = "pull again; if this happens twice, use another network"
            raise DownloadFailed(f"{what}: its sha256 is {found} instead of {file.sha256}", hint=hint)
        part.publish()
        local_models.remember_sha256(part.final, file.sha256)
        fetched = f"{size_text(part.fetched)} downloaded, " if part.fetched else ""
        self._tell(f"{file.name}: {fetched}sha256 verified")


def absent(pair: Pair, file: ModelFile) -> BadModelFile:
    again = "add the pair again with `localspec pairs add`"
    if not file.place.exists():
        what = f"{pair.name} needs {file.file}, which does not exist"
        return BadModelFile(what, hint=f"put the file back, or {again}")
    what = f"{file.file} is no longer the file that {pair.name} was made with: it has another size"
    return BadModelFile(what, hint=again)


def check_space(folder: Path, needed: int) -> None:
    """Raise DownloadFailed unless `needed` bytes and a margin are free in the folder's file system."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    with_margin = needed + max(32_000_000, needed // 100)
    free = shutil.disk_usage(existing).free
    if needed and free < with_margin:
        raise DownloadFailed(
            f"the files need {size_text(with_margin)}, and {folder} has {size_text(free)} free",
            hint="make room, or set LOCALSPEC_HOME to a folder on a larger disk",
        )
