"""A file that is being fetched: its first bytes on the disk and their hash; and the lock of whoever fetches."""

import hashlib
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from localspec.files import FileLock, sync_folder
from localspec.models import hub, places
from localspec.models.hub import RemoteFile, of_system
from localspec.models.places import ModelFile

PART = ".part"  # after the final name of a file
_CHUNK = 1 << 20
_HEAD = 4 << 20  # bytes of a request while a header is read


class PullStage(StrEnum):
    WAITING = "waiting"  # for another process that fetches
    HASHING = "hashing"  # bytes that are here already
    FETCHING = "fetching"


def part_of(final: Path) -> Path:
    return final.with_name(final.name + PART)


def partial_bytes(file: ModelFile) -> int:
    """Bytes that an earlier pull of a file left, or another one has so far."""
    return min(places.size_at(part_of(file.place)) or 0, file.bytes)


def pull_lock() -> FileLock:
    """The lock of whoever fetches or removes model files."""
    return FileLock(places.models_dir() / ".lock")


class PartialFile:
    """FINAL.part: the first `size` bytes of the remote file, and their running hash.

    Each chunk is written as it arrives, so that a killed process loses next to nothing.
    """

    def __init__(
        self,
        file: ModelFile,
        remote: RemoteFile,
        on_size: Callable[[PullStage, ModelFile, int], None],
    ) -> None:
        """`on_size` hears every new size, and raises once the pull is cancelled. Raises DownloadFailed."""
        self.file, self.final, self.path, self.remote = file, file.place, part_of(file.place), remote
        self.fetched = 0  # bytes over the network in this process
        self.size = self.resumed_from = 0
        self._on_size = on_size
        self.digest = hashlib.sha256()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise of_system(error, remote.name) from error

    def take_up(self) -> None:
        """Hash the bytes that an earlier process left."""
        if os.fstat(self._file.fileno()).st_size > self.remote.bytes:
            self.restart()
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._add(chunk, PullStage.HASHING)
        self.resumed_from = self.size

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file for the reader of headers; fetches missing ones."""
        if offset + length > self.size:
            self._extend(min(max(offset + length, self.size + _HEAD), self.remote.bytes))
        self._file.seek(offset)
        return self._file.read(length)

    def fetch_rest(self) -> str:
        """Fetch the missing bytes; returns the sha256 of all. Raises DownloadFailed, PullCancelled."""
        self._extend(self.remote.bytes)
        return self.digest.hexdigest()

    def restart(self) -> None:
        """Throw away all bytes."""
        self._file.truncate(0)
        self.digest = hashlib.sha256()
        self.size = self.resumed_from = 0

    def publish(self) -> None:
        """Give the whole, verified file its final name. Raises DownloadFailed."""
        assert self.size == self.remote.bytes, "only a whole file gets the final name"
        try:
            os.fsync(self._file.fileno())
            self.close()
            os.replace(self.path, self.final)
            sync_folder(self.final.parent)
        except OSError as error:
            raise of_system(error, self.remote.name) from error

    def close(self) -> None:
        """Close the file, which stays unless it is empty. A second call does nothing."""
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
                    renewed = True  # the signed address of the other origin has expired
                    remote = self.remote
                    self.remote = hub.look(remote.repo, remote.file, remote.commit)
                else:
                    hub.wait(failures, error, self.remote.name)

    def _receive(self, end: int) -> None:
        import httpx2

        with hub.stream(self.remote, self.size, end) as (at, chunks):
            if at < self.size:  # the server ignores ranges
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
