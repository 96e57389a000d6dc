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
from localspec.gguf.parts import joined, parts_of
from localspec.hub import repository as hub
from localspec.hub.repository import RemoteFile
from localspec.pairs import stamps, store
from localspec.pairs.quants import chosen, models_in
from localspec.pairs.registry import HubFile, LocalFile, ModelFile, stays_inside

_ON_THE_HUB = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)(?::(.+\.gguf|[\w.-]+))?", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)"
    r"(?:/(?:resolve|blob|raw)/([^/?#]+)/([^?#]+?)|/tree/[^?#]*|:([\w.-]+))?/?(?:[?#].*)?"
)


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of a repository, as a user names it."""

    repo: str
    file: str = ""  # "": the model is named by its quantisation, or not at all
    quant: str = ""
    revision: str = "main"

    @property
    def text(self) -> str:
        """The shortest way to write it."""
        named = self.file or self.quant
        return f"{self.repo}:{named}" if named else self.repo


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file whose header has been read, wherever it lies."""

    file: ModelFile
    header: Header
    path: Path | None  # None: only on the Hub


def is_file_reference(text: str) -> bool:
    """Whether a text names a file or a repository rather than a pair."""
    return text.lower().endswith(".gguf") or "/" in text or "\\" in text


def hub_reference(text: str) -> HubReference | None:
    """ORG/REPO, ORG/REPO:QUANT, ORG/REPO:FILE.gguf, or an address of the Hub; None for anything else.

    What is a path on this machine is none. Raises BadSetting.
    """
    if os.path.exists(expanded(text)):
        return None
    if found := _ADDRESS.fullmatch(text):
        named = HubReference(found[1], unquote(found[3] or ""), found[4] or "", unquote(found[2] or "main"))
    elif (found := _ON_THE_HUB.fullmatch(text)) and (found[2] or not text.lower().endswith(".gguf")):
        is_file = (found[2] or "").lower().endswith(".gguf")
        named = HubReference(found[1], found[2] if is_file else "", "" if is_file else found[2] or "")
    else:
        return None
    if named.file and not (named.file.lower().endswith(".gguf") and stays_inside(named.file)):
        raise BadSetting(f"{text} does not name a file of a repository", hint="write ORG/REPO:FILE.gguf")
    return named


def open_reference(text: str) -> OpenedFile:
    """Find a model and read its header, over the network where it is not here.

    Raises DownloadFailed, UnknownPair, BadModelFile, BadSetting.
    """
    found = hub_reference(text)
    if found is None:
        path = expanded(text).absolute()
        header = header_at(path)
        return OpenedFile(LocalFile(path, header.file_bytes), header, path)
    file = pinned(found)
    return OpenedFile(file, hub_header(file), None)


def open_file(file: ModelFile) -> OpenedFile:
    """Read the header of a known file, over the network where it is not here."""
    path = store.locate(file)
    if path is not None:
        return OpenedFile(file, header_at(path), path)
    if isinstance(file, LocalFile):
        raise BadModelFile(
            f"{file.path} does not exist", hint="put it there, or write the pair anew: `localspec pairs add`"
        )
    return OpenedFile(file, hub_header(file), None)


def hub_header(file: HubFile) -> Header:
    """The header of a model on the Hub, by range requests of a few megabytes for each of its files."""
    singles = (file, *file.rest)
    headers = [_remote_header(hub.look(part.repo, part.file, part.revision)) for part in singles]
    return joined(Path(file.name), headers) if file.rest else headers[0]


def _remote_header(remote: RemoteFile) -> Header:
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


def pinned(named: HubReference) -> HubFile:
    """The model of a reference as it is on the Hub now. Raises SeveralModels, UnknownPair, DownloadFailed."""
    if named.file and len(parts_of(Path(named.file))) == 1:
        remote = hub.look(named.repo, named.file, named.revision)
        return HubFile(remote.repo, remote.file, remote.commit, remote.bytes, remote.sha256 or "")
    found = hub.listing(named.repo, named.revision)
    return chosen(named.repo, named.file or named.quant, models_in(found))
