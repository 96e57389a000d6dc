"""Find model files on this machine, read their headers and hashes, and store the last use of each pair."""

import glob
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from localspec import options
from localspec.errors import DownloadFailed
from localspec.files import (
    AHEAD_SECONDS,
    FileLock,
    change_json_object,
    file_of,
    lies_in,
    read_numbers,
    recalled,
    remember_number,
    store,
)
from localspec.gguf.facts import table_path
from localspec.gguf.header import Header, header_at, joined, parts_of, read_header

if TYPE_CHECKING:  # imported late, because files of this machine do not need the Hub
    from localspec.models import hub

# Other programs whose models localspec can use.
OLLAMA, LM_STUDIO, HUGGING_FACE, LLAMA_CPP = "Ollama", "LM Studio", "Hugging Face", "llama.cpp"
PART = ".part"  # suffix of an incomplete file
PROJECTOR = re.compile(r"mmproj.*\.gguf$", re.IGNORECASE)
_VARIABLES = {
    OLLAMA: ("OLLAMA_MODELS",),
    LM_STUDIO: (),
    HUGGING_FACE: ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
    LLAMA_CPP: ("LLAMA_CACHE",),
}
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4|BF16|F16|F32|FP16|FP32))(?=[-./]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model, either pinned on the Hub or a file of this machine. Unknown facts are empty, 0 or None."""

    repo: str  # repository on the Hub; "" for a file of this machine
    file: str  # path in the repository, or on this machine
    revision: str = ""
    bytes: int = 0  # size; 0: unknown, so that any size is accepted
    sha256: str = ""
    quant: str = ""
    license: str = ""
    layers: int | None = None
    kv_bytes_per_token: int | None = None  # bytes of one token in the F16 KV caches of all layers
    window: int | None = None  # length of the sliding window in tokens
    window_layers: int | None = None  # number of layers with a sliding window
    embedding_bytes: int | None = None  # bytes of the token embedding, which stays in main memory
    output_bytes: int | None = None  # None if the token embedding is also the output matrix
    rest: tuple["ModelFile", ...] = ()  # the later parts of a model in several files
    first_sha256: str = ""  # sha256 of the first part; "" in the first part itself
    label: str = ""  # the model's name, if the file has another name

    @classmethod
    def at(cls, path: Path, size: int = 0, sha256: str = "") -> "ModelFile":
        return cls("", str(path), "", size, sha256)

    @classmethod
    def listed(cls, file: "hub.RemoteFile", first_sha256: str = "") -> "ModelFile":
        sha256 = file.sha256 or ""
        return cls(file.repo, file.file, file.commit, file.bytes, sha256, first_sha256=first_sha256)

    @property
    def name(self) -> str:
        return self.label or Path(self.file).name

    @property
    def all_bytes(self) -> int:
        """The bytes of all files of the model; for files of this machine, their present sizes."""
        if self.repo:
            return self.bytes + sum(part.bytes for part in self.rest)
        first = Path(self.file)
        return sum(size_at(part) or 0 for part in (*parts_of(first), table_path(first)))

    @property
    def place(self) -> Path:
        """The path of a file of this machine; for a file of the Hub, the path to which a pull writes it."""
        if not self.repo:
            return Path(self.file)
        key = (self.first_sha256 or self.sha256)[:12]
        return models_dir() / self.repo.replace("/", "--") / key / self.name

    @property
    def path(self) -> Path | None:
        """The path of the first part; None if a part is missing. Another program's copy needs a verified hash."""
        if not self.repo:
            size = size_at(self.place)
            return parts_of(self.place)[0] if size is not None and self.bytes in (0, size) else None
        for first in _copies(self):
            if all(first.with_name(part.name) in _copies(part) for part in self.rest):
                return first
        return None

    @property
    def here(self) -> Path:
        path = self.path
        assert path, f"{self.name} was here when the pair was found"
        return path

    @property
    def header(self) -> Header:
        """The model's header, read from the Hub if the model is not on this machine."""
        if path := self.path:
            return header_at(path)
        return _header_on_hub(self) if self.repo else header_at(self.place)

    def pinned(self) -> "ModelFile":
        """Return the file with its size and hash. Raises DownloadFailed if the Hub gives no hash."""
        if self.sha256 and self.repo:
            return self
        if self.repo:
            what = f"Hugging Face has no sha256 of {self.repo}:{self.file} to check a download with"
            raise DownloadFailed(what, hint="download the file yourself, and give its path")
        sha256 = known_sha256(self.place) or hash_file(self.place)
        return replace(self, bytes=self.place.stat().st_size, sha256=sha256)


@lru_cache(maxsize=8)
def _header_on_hub(file: ModelFile) -> Header:
    from localspec.models import hub

    remotes = [hub.look(part.repo, part.file, part.revision) for part in (file, *file.rest)]
    headers = [read_header(partial(hub.read_range, each), each.bytes, label=each.name) for each in remotes]
    return joined(Path(file.name), headers) if file.rest else headers[0]


def fitted_dir() -> Path:
    return options.data_dir() / "fitted"


def models_dir() -> Path:
    return options.data_dir() / "models"


def pull_lock() -> FileLock:
    return FileLock(models_dir() / ".lock")


def part_of(final: Path) -> Path:
    return final.with_name(final.name + PART)


def projectors_of(repo: str) -> list[Path]:
    """Return the projectors that were downloaded from a repository."""
    found = (models_dir() / repo.replace("/", "--")).glob("*/*") if repo else ()
    return [path for path in found if PROJECTOR.search(path.name)]


def path_of(file: ModelFile) -> Path:
    """Return a file's path with links resolved, whether the file exists or not."""
    return Path(os.path.realpath(file.place))


def distinct(files: Iterable[ModelFile]) -> tuple[ModelFile, ...]:
    found: dict[Path, ModelFile] = {}
    for file in files:
        found.setdefault(path_of(file), file)
    return tuple(found.values())


def folders_of(store: str) -> tuple[Path, ...]:
    """Return the folders in which another program keeps models, by the program's own rules."""
    environment, home = os.environ, Path(os.path.expanduser("~"))  # "~" stays if the user has no home folder
    if given := next(filter(None, map(environment.get, _VARIABLES[store])), None):
        return (Path(os.path.expanduser(given)),)
    if store == OLLAMA:
        return home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")
    if store == HUGGING_FACE:
        base = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
        return (Path(os.path.expanduser(base), "hub"),)
    if store == LLAMA_CPP:
        return (user_cache_path("llama.cpp", False, opinion=False),)
    moved = ""
    with suppress(OSError, ValueError):
        moved = (home / ".lmstudio-home-pointer").read_text("utf-8")[:4096].strip()
    usual = home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"
    return (Path(moved, "models"), *usual) if moved else usual


def quant_in(name: str) -> str:
    """Return the quantisation in the name of a file; "" if there is none."""
    found = _QUANT.findall(name.removesuffix(".gguf"))
    return str(found[-1]) if found else ""


def cached_copies(file: ModelFile) -> tuple[Path, ...]:
    """Return files of the right size in other programs' folders. Only their hashes show whether they are copies."""
    repository = folders_of(HUGGING_FACE)[0] / f"models--{file.repo.replace('/', '--')}"
    named = map(Path, glob.glob(f"{glob.escape(str(repository))}/snapshots/*/{glob.escape(file.file)}"))
    found = (
        *sorted(named, key=lambda path: (file.revision not in path.parts, path)),
        repository / "blobs" / file.sha256,
        *(folder / file.repo / file.file for folder in folders_of(LM_STUDIO)),
        *(folder / f"{file.repo}/{file.file}".replace("/", "_") for folder in folders_of(LLAMA_CPP)),
        *(folder / "blobs" / f"sha256-{file.sha256}" for folder in folders_of(OLLAMA)),
    )
    return tuple(path for path in found if size_at(path) == file.bytes)


def _copies(file: ModelFile) -> list[Path]:
    copies = [file.place] if size_at(file.place) == file.bytes else []
    return [*copies, *(path for path in cached_copies(file) if known_sha256(path) == file.sha256)]


def is_ours(path: Path) -> bool:
    return lies_in(path, models_dir())


def known_sha256(path: Path) -> str | None:
    """Return a file's stored SHA-256; None if the file was never hashed, or has changed since."""
    with suppress(OSError):
        return recalled(_hash_file(path), str)
    return None


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """Compute, store and return a file's SHA-256; `on_bytes` gets the number of bytes read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return remember_sha256(path, digest.hexdigest())


def remember_sha256(path: Path, sha256: str) -> str:
    store(_hash_file(path), sha256)
    return sha256


def _hash_file(path: Path) -> Path:
    return file_of(options.data_dir() / "hashes", identity(path))


def mark_used(name: str) -> None:
    remember_number(options.data_dir() / "last-used.json", name, time.time())


def forget_use(name: str) -> Path:
    """Forget when a pair was last used, and return the file that recorded it. Raises OSError."""
    change_json_object(path := options.data_dir() / "last-used.json", {name: None})
    return path


def last_uses() -> dict[str, float]:
    """Return the time of each pair's last run in seconds since 1970. The keys are `Pair.used_as`."""
    return read_numbers(options.data_dir() / "last-used.json", most=time.time() + AHEAD_SECONDS)


def size_at(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def identity(path: Path) -> str:
    """Return a key from a file's path, size and time of change, so that a changed file has another key."""
    facts = path.stat()
    return f"{path.resolve()}:{facts.st_size}:{facts.st_mtime_ns}"
