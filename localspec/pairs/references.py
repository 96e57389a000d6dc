"""How a user names one file: org/repo:file.gguf on the Hub, or a path on this machine."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from localspec.errors import BadModelFile, BadSetting, DownloadFailed
from localspec.files import expanded
from localspec.gguf.facts import header_at
from localspec.gguf.header import Header, read_header
from localspec.hub import repository as hub
from localspec.hub.repository import RemoteFile
from localspec.pairs import stamps, store
from localspec.pairs.registry import HubFile, LocalFile, ModelFile, stays_inside

_ON_THE_HUB = re.compile(r"([\w.-]+/[\w.-]+):(.+\.gguf)", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?:https?://)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)(?:/(?:resolve|blob)/main/(.+?))?/?(?:[?#].*)?"
)


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file whose header has been read, wherever it lies."""

    file: ModelFile
    header: Header
    path: Path | None  # None: only on the Hub


def is_file_reference(text: str) -> bool:
    """Whether a text names a file rather than a pair."""
    return text.lower().endswith(".gguf") or "/" in text or "\\" in text


def open_reference(text: str) -> OpenedFile:
    """Find a file and read its header, over the network where it is not here.

    Raises DownloadFailed, UnknownPair, BadModelFile, BadSetting.
    """
    found = _ON_THE_HUB.fullmatch(text) or _ADDRESS.fullmatch(text)
    path = expanded(text).absolute()
    if found is None or os.path.exists(path):
        header = header_at(path)
        return OpenedFile(LocalFile(path, header.file_bytes), header, path)
    repo, file = found[1], unquote(found[2] or "")
    if not stays_inside(file):
        raise BadSetting(f"{text} does not name a file of a repository", hint="write ORG/REPO:FILE.gguf")
    remote = hub.look(repo, file)
    return OpenedFile(_pinned(remote), remote_header(remote), None)


def open_file(file: ModelFile) -> OpenedFile:
    """Read the header of a known file, over the network where it is not here."""
    path = store.locate(file)
    if path is not None:
        return OpenedFile(file, header_at(path), path)
    if isinstance(file, LocalFile):
        raise BadModelFile(
            f"{file.path} does not exist", hint="put it there, or write the pair anew: `localspec pairs add`"
        )
    return OpenedFile(file, remote_header(hub.look(file.repo, file.file, file.revision)), None)


def remote_header(remote: RemoteFile) -> Header:
    """The header of a file on the Hub, by range requests of a few megabytes at most."""

    def read(offset: int, length: int) -> bytes:
        return hub.read_range(remote, offset, length)

    return read_header(read, remote.bytes, label=remote.name)


def pin(opened: OpenedFile) -> ModelFile:
    """The file with everything that a registry entry needs; a local one is hashed for it."""
    if isinstance(opened.file, HubFile):
        if not opened.file.sha256:
            raise DownloadFailed(
                f"the Hub gives no sha256 for {opened.file.repo}:{opened.file.file}, so it cannot be pinned",
                hint="fetch the file yourself and add it by its path",
            )
        return opened.file
    assert opened.path is not None
    stamp = stamps.read(opened.path) or stamps.write(opened.path, stamps.sha256_of(opened.path))
    return LocalFile(opened.path, stamp.bytes, stamp.sha256)


def _pinned(remote: RemoteFile) -> HubFile:
    return HubFile(remote.repo, remote.file, remote.commit, remote.bytes, remote.sha256 or "")
