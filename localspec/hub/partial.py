"""A file on its way here: it grows from the front, hashed as it grows, and outlives the process."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from localspec.errors import DownloadFailed
from localspec.files import sync_folder
from localspec.hub import repository as hub
from localspec.hub.failures import is_passing, of_system, translated, wait_asked_for
from localspec.hub.progress import PullStage
from localspec.hub.repository import Patience, RemoteFile
from localspec.locks import FileLock

PART, LOCK = ".part", ".lock"  # after the name that the whole file will have
_CHUNK = 1 << 20
_HEAD = 4 << 20  # bytes that are fetched at a time while a header is read
_UNSATISFIABLE, _FORBIDDEN = 416, (401, 403)


class PullCancelled(DownloadFailed):
    """The user stopped the pull; what came so far is kept."""


class PartialFile:
    """FINAL.part: the first `size` bytes of the remote file, and their running hash.

    Bytes are written as they arrive, so that whatever ends the process loses next to nothing.
    """

    def __init__(
        self,
        final: Path,
        remote: RemoteFile,
        *,
        on_bytes: Callable[[PullStage, int], None],
        cancelled: Callable[[], bool],
        patience: Patience,
    ) -> None:
        """Take up what an earlier process left. Raises DownloadFailed."""
        self.final, self.remote = final, remote
        self.path = part_of(final)
        self.size = self.fetched = 0  # bytes: in the file, and over the network by this process
        self._on_bytes, self._cancelled, self._patience = on_bytes, cancelled, patience
        self._digest = hashlib.sha256()
        self._connection = ExitStack()
        self._chunks: Iterator[bytes] | None = None
        self._surplus = 0  # bytes at the front of the answer that are here already
        self._ranges = True  # whether to ask for the rest only
        self._renewed = False  # whether the address was asked for anew since the last byte came
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("r+b" if self.path.exists() else "x+b", buffering=0)
        except OSError as error:
            raise of_system(error, remote.name) from error
        self.resumed_from = self._take_up()

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file, fetched first if they are not here yet: what a header reader asks for."""
        if offset + length > self.size:
            # in a request of its own: what a connection has sent ahead is lost when it is left waiting
            self._extend(min(offset + max(length, _HEAD), self.remote.bytes), bounded=True)
            self._hang_up()
        self._file.seek(offset)
        return self._file.read(length)

    def fetch_rest(self) -> None:
        """Fetch what is missing. Raises DownloadFailed, PullCancelled."""
        self._extend(self.remote.bytes, bounded=False)
        self._hang_up()

    def _extend(self, size: int, bounded: bool) -> None:
        import httpx2

        failures = 0
        while self.size < size:
            if self._cancelled():
                raise PullCancelled(
                    f"stopped while fetching {self.remote.name}", hint="what came so far is kept"
                )
            try:
                chunk = self._next_chunk(size if bounded else None)
            except (httpx2.HTTPError, OSError) as error:
                self._hang_up()
                failures += 1
                self._give_up_or_wait(error, failures)
            else:
                failures = 0
                self._append(chunk)

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def restart(self) -> None:
        """Throw away what is here."""
        self._hang_up()
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self.size = self.resumed_from = 0

    def publish(self) -> None:
        """Give the whole, verified file its final name, for good. Raises DownloadFailed."""
        assert self.size == self.remote.bytes, "only a whole file gets the final name"
        try:
            os.fsync(self._file.fileno())
            self.close()
            os.replace(self.path, self.final)
            sync_folder(self.final.parent)
        except OSError as error:
            raise of_system(error, self.remote.name) from error

    def discard(self) -> None:
        """Remove it: these bytes are of no use."""
        self.size = 0
        self.close()

    def close(self) -> None:
        """Hang up and let go of the file, which stays unless it is empty. Twice is once."""
        self._hang_up()
        self._file.close()
        if not self.size:
            self.path.unlink(missing_ok=True)

    def _take_up(self) -> int:
        if os.fstat(self._file.fileno()).st_size > self.remote.bytes:
            self._file.truncate(0)
        while chunk := self._file.read(_CHUNK):
            self._digest.update(chunk)
            self.size += len(chunk)
            self._on_bytes(PullStage.HASHING, len(chunk))
            if self._cancelled():
                break
        return self.size

    def _hang_up(self) -> None:
        self._connection.close()
        self._chunks = None

    def _next_chunk(self, end: int | None) -> bytes:
        import httpx2

        if self._chunks is None:
            start, end = (self.size, end) if self._ranges else (0, None)
            at, self._chunks = self._connection.enter_context(hub.stream(self.remote, start, end))
            self._surplus = self.size - at
        for chunk in self._chunks:
            skipped = min(self._surplus, len(chunk))
            self._surplus -= skipped
            if self._cancelled() or len(chunk) > skipped:
                return chunk[skipped:]
        raise httpx2.RemoteProtocolError(f"it ended after {self.size:,} of {self.remote.bytes:,} bytes")

    def _append(self, chunk: bytes) -> None:
        chunk = chunk[: self.remote.bytes - self.size]
        try:
            self._file.seek(self.size)
            written = 0
            while written < len(chunk):
                written += self._file.write(chunk[written:])
        except OSError as error:
            raise of_system(error, self.remote.name) from error
        self._digest.update(chunk)
        self.size += len(chunk)
        self.fetched += len(chunk)
        self._renewed = False
        self._on_bytes(PullStage.FETCHING, len(chunk))

    def _give_up_or_wait(self, error: Exception, failures: int) -> None:
        asked = wait_asked_for(error)
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == _UNSATISFIABLE and self._ranges:
            self._ranges = False
        elif status in _FORBIDDEN and not self.remote.with_token and not self._renewed:
            # the signed address that the Hub redirected to has expired
            self._renewed = True
            self.remote = hub.look(self.remote.repo, self.remote.file, self.remote.commit, self._patience)
        elif failures >= self._patience.tries or not is_passing(error) or not self._patience.allows(asked):
            raise translated(error, self.remote.name) from error
        else:
            self._patience.pause(failures, asked)


def part_of(final: Path) -> Path:
    return final.with_name(final.name + PART)


def lock_of(final: Path) -> FileLock:
    """The lock that whoever fetches or removes a file holds."""
    return FileLock(final.with_name(final.name + LOCK))
