"""Where model files lie on this machine, and which pair was used last."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import platformdirs

from localspec import settings
from localspec.files import (
    expanded,
    lies_in,
    read_json_object,
    read_numbers,
    remember_number,
    write_text_atomically,
)
from localspec.models.registry import HubFile, ModelFile, Pair

_LATEST = 253_000_000_000.0  # seconds since 1970 in the last year that a date can have


def models_dir() -> Path:
    return settings.data_dir() / "models"


def place(file: HubFile) -> Path:
    """Where a fetched file lies under its final name, parts of a model together; only verified files get there."""
    return models_dir() / file.repo.replace("/", "--") / (file.first_sha256 or file.sha256)[:12] / file.name


def path_of(file: ModelFile) -> Path:
    """Where a file lies, or will lie once it is fetched, with links followed: equal for equal files."""
    return Path(os.path.realpath(place(file) if isinstance(file, HubFile) else file.path))


def distinct(files: Iterable[ModelFile]) -> tuple[ModelFile, ...]:
    """The files without those that are another one again, whatever else is written about them."""
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


def cached_copies(file: HubFile) -> tuple[Path, ...]:
    """Files of the right size where other programs keep theirs, the pinned revision first; not yet hashed."""
    return tuple(path for path in (*_in_hub_cache(file), *_elsewhere(file)) if _size(path) == file.bytes)


def _in_hub_cache(file: HubFile) -> list[Path]:
    repository = hub_cache() / f"models--{file.repo.replace('/', '--')}"
    named: list[Path] = []
    with suppress(OSError):  # a cache that cannot be looked into has nothing for us
        named += repository.glob(f"snapshots/*/{_literal(file.file)}")
    named.sort(key=lambda path: (file.revision not in path.parts, path))
    return [*named, repository / "blobs" / file.sha256]


def _elsewhere(file: HubFile) -> list[Path]:
    """Where LM Studio, llama.cpp and Ollama would have the file."""
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


def locate(file: ModelFile) -> Path | None:
    """The file on this machine, if it is here whole; copies of other programs count once `pull` has hashed them.

    Of a model in several files the first, all of them being here in one folder.
    """
    if not isinstance(file, HubFile):
        size = _size(file.path)
        return file.path if size is not None and file.bytes in (None, size) else None
    for first in _copies(file):
        if all(first.with_name(part.name) in _copies(part) for part in file.rest):
            return first
    return None


def _copies(file: HubFile) -> list[Path]:
    """Where a single file lies, and its hash is known to be right."""
    found = [place(file)] if _size(place(file)) == file.bytes else []
    return [*found, *(path for path in cached_copies(file) if known_sha256(path) == file.sha256)]


def is_ours(path: Path) -> bool:
    """Whether a name is in localspec's own folder, so that it may be removed: of a file, or of a link to one."""
    return lies_in(path, models_dir())


def known_sha256(path: Path) -> str | None:
    """The hash of a file that was hashed before and has not changed since; None for others."""
    with suppress(OSError, ValueError):
        stamp = read_json_object(_stamp_file(path))
        if isinstance(sha256 := stamp.get("sha256"), str) and stamp.items() >= _state(path).items():
            return sha256
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
    write_text_atomically(_stamp_file(path), json.dumps(_state(path) | {"sha256": sha256}))
    return sha256


def forget_sha256(path: Path) -> None:
    _stamp_file(path).unlink(missing_ok=True)


def _state(path: Path) -> dict[str, object]:
    now = path.stat()
    return {"path": str(path.resolve()), "bytes": now.st_size, "mtime_ns": now.st_mtime_ns}


def _stamp_file(path: Path) -> Path:
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    return settings.data_dir() / "stamps" / f"{key}.json"


def on_disk(pair: Pair) -> bool:
    return all(locate(file) for file in pair.files)


def missing(pair: Pair) -> tuple[ModelFile, ...]:
    return tuple(file for file in distinct(pair.files) if locate(file) is None)


def mark_used(name: str) -> None:
    """Remember that a pair was run now."""
    remember_number(_uses_file(), name, time.time())


def last_uses() -> dict[str, float]:
    """Pair name -> time of its last run, in seconds since 1970; a damaged entry counts as none."""
    return read_numbers(_uses_file(), most=_LATEST)


def _uses_file() -> Path:
    return settings.data_dir() / "last-used.json"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
