"""Model files: facts, places on this machine, headers; and the pair used last."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import platformdirs

from localspec import options
from localspec.errors import DownloadFailed
from localspec.files import (
    AHEAD_SECONDS,
    expanded,
    file_of,
    lies_in,
    read_numbers,
    recalled,
    remember_number,
    store,
)
from localspec.gguf.facts import DraftKind, draft_kind, table_path
from localspec.gguf.header import Header, header_at, joined, parts_of, read_header
from localspec.models import hub


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model: pinned on the Hub, or a file of this machine. Facts that nobody wrote down are empty or None."""

    repo: str  # "": it is on this machine
    file: str  # in the repository, or the path
    revision: str = ""
    bytes: int = 0  # 0: as large as it happens to be
    sha256: str = ""
    quant: str = ""
    license: str = ""
    layers: int | None = None
    kv_bytes_per_token: int | None = None  # F16, in all layers
    window: int | None = None  # tokens that some layers see
    window_layers: int | None = None  # how many these are
    embedding_bytes: int | None = None  # of the token embedding, which stays in main memory
    output_bytes: int | None = None  # of an output matrix of its own; without, it is the embedding once more
    rest: tuple["ModelFile", ...] = ()  # the other files of a model in several
    first_sha256: str = ""  # of the file that this one is part of the rest of

    @classmethod
    def at(cls, path: Path, size: int = 0, sha256: str = "") -> "ModelFile":
        """A file of this machine."""
        return cls("", str(path), "", size, sha256)

    @property
    def name(self) -> str:
        return Path(self.file).name

    @property
    def all_bytes(self) -> int:
        """Bytes of all its files; on this machine their present sizes."""
        if self.repo:
            return self.bytes + sum(part.bytes for part in self.rest)
        first = Path(self.file)
        return sum(size_at(part) or 0 for part in (*parts_of(first), table_path(first)))

    @property
    def place(self) -> Path:
        """The final name of a fetched file, parts of a model together; only verified files get there."""
        if not self.repo:
            return Path(self.file)
        key = (self.first_sha256 or self.sha256)[:12]
        return models_dir() / self.repo.replace("/", "--") / key / self.name

    @property
    def path(self) -> Path | None:
        """The first of its files, if all are here whole; copies of other programs count once `pull` has hashed them."""
        if not self.repo:
            size = size_at(self.place)
            return parts_of(self.place)[0] if size is not None and self.bytes in (0, size) else None
        for first in _copies(self):
            if all(first.with_name(part.name) in _copies(part) for part in self.rest):
                return first
        return None

    @property
    def here(self) -> Path:
        """`path`, of a file that is known to be on this machine."""
        path = self.path
        assert path, f"{self.name} was here when the pair was found"
        return path

    @property
    def header(self) -> Header:
        """Read once while the file does not change; of one that is only on the Hub a few megabytes are fetched."""
        if path := self.path:
            return header_at(path)
        return _header_on_hub(self) if self.repo else header_at(self.place)

    @property
    def kind(self) -> DraftKind:
        """How it drafts."""
        return draft_kind(self.header)

    def pinned(self) -> "ModelFile":
        """The file with the size and hash of a registry entry. Raises DownloadFailed."""
        if self.repo and not self.sha256:
            raise DownloadFailed(
                f"the Hub gives no sha256 for {self.repo}:{self.file}, so it cannot be pinned",
                hint="fetch the file yourself and add it by its path",
            )
        if self.repo:
            return self
        sha256 = known_sha256(self.place) or hash_file(self.place)
        return replace(self, bytes=self.place.stat().st_size, sha256=sha256)


@lru_cache(maxsize=8)
def _header_on_hub(file: ModelFile) -> Header:
    """Read the header by range requests of a few megabytes for each file."""
    with hub.known_to_be_there():
        remotes = [hub.look(part.repo, part.file, part.revision) for part in (file, *file.rest)]
        headers = [
            read_header(partial(hub.read_range, remote), remote.bytes, label=remote.name)
            for remote in remotes
        ]
    return joined(Path(file.name), headers) if file.rest else headers[0]


def fitted_dir() -> Path:
    """The folder of drafts that `localspec fit` made. Not created here."""
    return options.data_dir() / "fitted"


def models_dir() -> Path:
    return options.data_dir() / "models"


def path_of(file: ModelFile) -> Path:
    """The path of a file, now or after its download, with links followed: equal for equal files."""
    return Path(os.path.realpath(file.place))


def distinct(files: Iterable[ModelFile]) -> tuple[ModelFile, ...]:
    """The files, each once."""
    found: dict[Path, ModelFile] = {}
    for file in files:
        found.setdefault(path_of(file), file)
    return tuple(found.values())


def hub_cache() -> Path:
    """The Hugging Face cache of this user, by the rules of huggingface_hub."""
    environment = os.environ
    if cache := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return expanded(cache)
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(environment.get("HF_HOME") or f"{base}/huggingface") / "hub"


def cached_copies(file: ModelFile) -> tuple[Path, ...]:
    """Files of the right size where other programs keep theirs, the pinned revision first; not yet hashed."""
    return tuple(path for path in (*_in_hub_cache(file), *_elsewhere(file)) if size_at(path) == file.bytes)


def _in_hub_cache(file: ModelFile) -> list[Path]:
    repository = hub_cache() / f"models--{file.repo.replace('/', '--')}"
    named: list[Path] = []
    with suppress(OSError):  # a cache that cannot be looked into has nothing for us
        named += repository.glob(f"snapshots/*/{_literal(file.file)}")
    named.sort(key=lambda path: (file.revision not in path.parts, path))
    return [*named, repository / "blobs" / file.sha256]


def _elsewhere(file: ModelFile) -> list[Path]:
    """Paths of the file in LM Studio, llama.cpp and Ollama."""
    home = Path(os.path.expanduser("~"))  # as it stands where there is no home
    llama_cpp = os.environ.get("LLAMA_CACHE") or platformdirs.user_cache_path(
        "llama.cpp", False, opinion=False
    )
    ollama = os.environ.get("OLLAMA_MODELS") or home / ".ollama" / "models"
    return [
        *(
            folder / "models" / file.repo / file.file
            for folder in (home / ".lmstudio", home / ".cache" / "lm-studio")
        ),
        expanded(llama_cpp) / f"{file.repo}/{file.file}".replace("/", "_"),
        expanded(ollama) / "blobs" / f"sha256-{file.sha256}",
    ]


def _copies(file: ModelFile) -> list[Path]:
    """The path of a single file with the right hash."""
    found = [file.place] if size_at(file.place) == file.bytes else []
    return [*found, *(path for path in cached_copies(file) if known_sha256(path) == file.sha256)]


def is_ours(path: Path) -> bool:
    """Whether a name is in localspec's own folder, so that it may be removed: of a file, or of a link to one."""
    return lies_in(path, models_dir())


def known_sha256(path: Path) -> str | None:
    """The hash of a file that was hashed before and has not changed since; None for others."""
    with suppress(OSError):
        stamp = recalled(_stamp_file(path), _Stamp)
        if stamp and stamp == _stamp(path, stamp.sha256):
            return stamp.sha256
    return None


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """Read a file's SHA-256 and remember it; `on_bytes` hears how many bytes were read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return remember_sha256(path, digest.hexdigest())


def remember_sha256(path: Path, sha256: str) -> str:
    """Remember the hash of a file as long as its size and time stay the same."""
    store(_stamp_file(path), _stamp(path, sha256))
    return sha256


def forget_sha256(path: Path) -> None:
    _stamp_file(path).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The hash of a file, and the state that the file then had."""

    bytes: int
    mtime_ns: int
    sha256: str


def _stamp(path: Path, sha256: str) -> _Stamp:
    now = path.stat()
    return _Stamp(now.st_size, now.st_mtime_ns, sha256)


def _stamp_file(path: Path) -> Path:
    return file_of(options.data_dir() / "stamps", str(path.resolve()))


def mark_used(name: str) -> None:
    """Remember that a pair was run now, by its name or its files (`names.used_as`)."""
    remember_number(_uses_file(), name, time.time())


def last_uses() -> dict[str, float]:
    """Pair or files -> time of the last run, in seconds since 1970; a damaged entry counts as none."""
    return read_numbers(_uses_file(), most=time.time() + AHEAD_SECONDS)


def _uses_file() -> Path:
    return options.data_dir() / "last-used.json"


def size_at(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
