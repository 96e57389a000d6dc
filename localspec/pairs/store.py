"""Where model files lie on this machine, and which pair was used last."""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from localspec import settings
from localspec.files import expanded, write_text_atomically
from localspec.pairs import stamps
from localspec.pairs.registry import HubFile, ModelFile, Pair
from localspec.typed_json import loads_as

_LATEST = 253_000_000_000.0  # seconds since 1970 in the last year that a date can have


def models_dir() -> Path:
    return settings.data_dir() / "models"


def place(file: HubFile) -> Path:
    """Where a fetched file lies under its final name; only verified files ever get there."""
    return models_dir() / file.repo.replace("/", "--") / file.sha256[:12] / file.name


def path_of(file: ModelFile) -> Path:
    """Where a file lies, or will lie once it is fetched, with links followed: equal for equal files."""
    return (place(file) if isinstance(file, HubFile) else file.path).resolve()


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
    """Files in the Hugging Face cache that have the right size, the pinned revision first; not yet hashed."""
    repository = hub_cache() / f"models--{file.repo.replace('/', '--')}"
    named: list[Path] = []
    with suppress(OSError):  # a cache that cannot be looked into has nothing for us
        named += repository.glob(f"snapshots/*/{_literal(file.file)}")
    named.sort(key=lambda path: (file.revision not in path.parts, path))
    return tuple(path for path in (*named, repository / "blobs" / file.sha256) if _size(path) == file.bytes)


def locate(file: ModelFile) -> Path | None:
    """The file on this machine, if it is here whole; cached copies count once `pull` has hashed them."""
    if not isinstance(file, HubFile):
        size = _size(file.path)
        return file.path if size is not None and file.bytes in (None, size) else None
    fetched = place(file)
    if _size(fetched) == file.bytes:
        return fetched
    for path in cached_copies(file):
        stamp = stamps.read(path)
        if stamp and stamp.sha256 == file.sha256:
            return path
    return None


def is_ours(path: Path) -> bool:
    """Whether localspec fetched the file itself, so that it may remove it."""
    return path.is_relative_to(models_dir())


def on_disk(pair: Pair) -> bool:
    return all(locate(file) for file in pair.files)


def missing(pair: Pair) -> tuple[ModelFile, ...]:
    return tuple(file for file in distinct(pair.files) if locate(file) is None)


def mark_used(name: str) -> None:
    """Remember that a pair was run now."""
    times = last_uses()
    times[name] = time.time()
    with suppress(OSError):  # nobody should fail to run for lack of a note about it
        write_text_atomically(_uses_file(), json.dumps(times))


def last_uses() -> dict[str, float]:
    """Pair name -> time of its last run, in seconds since 1970; a damaged file counts as none."""
    try:
        times = loads_as(dict[str, float], _uses_file().read_text("utf-8"))
        return {name: seconds for name, seconds in times.items() if 0 <= seconds <= _LATEST}
    except (OSError, ValueError):
        return {}


def _uses_file() -> Path:
    return settings.data_dir() / "last-used.json"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
