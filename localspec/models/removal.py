"""Removes files that no other pair uses."""

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec import demo
from localspec.files import FileLock, alone, lies_in
from localspec.gguf.facts import table_path
from localspec.models import places
from localspec.models.hub import of_system
from localspec.models.partial_file import PART, part_of, pull_lock
from localspec.models.registry import Pair, all_pairs
from localspec.options import cache_dir

_PULL_RUNS = "a pull is running, so nothing can be removed", "stop that pull first"
_OURS = re.compile(r".+--.+/[0-9a-f]{12}/.+")  # where files lie below models/, see places.place


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome for files."""

    removed: tuple[Path, ...]
    freed: int  # bytes
    kept: tuple[tuple[str, str], ...]  # file and why


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that localspec fetched, as a whole or in part, or made, for no pair that is here as a whole."""

    path: Path
    bytes: int
    pair: str | None  # that a pull would make whole; None: no known pair names the file


def remove(pair: Pair) -> Removal:
    """Remove the files that localspec fetched or made for this pair alone. Raises BadSetting, DownloadFailed."""
    used = _used(other for other in all_pairs() if other.name != pair.name)
    unwanted: list[Path] = []
    kept: list[tuple[str, str]] = []
    for file in places.distinct(pair.singles):
        place, user = file.place, used.get(places.path_of(file))
        fitted = lies_in(place, places.fitted_dir())
        if not (file.repo or fitted):
            kept.append(
                (file.file, "it comes with localspec" if _is_embedded(place) else "it is a file of yours")
            )
            continue
        if user and place.exists():
            kept.append((file.name, f"{user} uses it"))
            continue
        names = list(filter(os.path.lexists, (place, part_of(place), *([table_path(place)] * fitted))))
        if fitted and any((folder := place.with_suffix("")).glob("*.npz*")):
            why = "`localspec fit` resumes from its answers; `localspec rm --unused` removes them"
            kept.append((str(folder), why))
        if fitted or places.is_ours(place):
            unwanted += names
        else:
            kept += [(str(name), "a link leads to its folder") for name in names]
        if not place.exists() and (cached := file.path):
            kept.append((str(cached), "it belongs to another program"))
    with alone(pull_lock(), *_PULL_RUNS):
        return _removed(unwanted, kept)


def enlarged_demo() -> tuple[Path, ...]:
    """The files of the demo pair that `localspec demo` has enlarged."""
    return tuple(sorted((cache_dir() / "demo").glob("*.gguf*")))


def remove_enlarged_demo() -> Removal:
    """Raises DownloadFailed."""
    return _removed(enlarged_demo(), [])


def _is_embedded(path: Path) -> bool:
    return path in (demo.target_path(), demo.draft_path())


def prune() -> Removal:
    """Remove all leftovers. Raises BadSetting, DownloadFailed, LocalspecError while another process fetches."""
    with alone(pull_lock(), *_PULL_RUNS):
        return _removed([leftover.path for leftover in leftovers()], [])


def leftovers() -> tuple[Leftover, ...]:
    """Half pulls, and files and answers of `localspec fit` that no pair on this machine uses. Raises BadSetting."""
    pairs = all_pairs()
    used = _used(pairs)
    named = {places.path_of(file): pair.name for pair in pairs for file in pair.hub_files}
    found = []
    for path in sorted(places.models_dir().glob("*/*/*")):
        final = Path(os.path.realpath(path.with_suffix("") if path.suffix == PART else path))
        if _is_ours(path) and final not in used and not path.is_dir():
            found.append(Leftover(path, _size(path), named.get(final)))
    for path in sorted(places.fitted_dir().glob("*")):
        name = path.name if path.is_dir() else path.name.removesuffix(".gguf").removesuffix(".tokens")
        draft = Path(os.path.realpath(path.with_name(f"{name}.gguf")))
        is_made = path.is_dir() or path.suffix == ".gguf"
        if is_made and draft not in used and not _is_being_made(path.with_name(name) / "lock"):
            found.append(Leftover(path, _size(path), None))
    return tuple(found)


def answer_bytes(unused: Iterable[Leftover]) -> int:
    """Bytes of the answers that `localspec fit` keeps for the drafts of pairs."""
    folders = set(places.fitted_dir().glob("*/")) - {left.path for left in unused}
    return sum(map(_size, folders))


def _is_being_made(lock: Path) -> bool:
    """Whether `localspec fit` holds the lock of a draft."""
    if not lock.exists():
        return False
    held = FileLock(lock)
    free = held.try_acquire()
    held.release()
    return not free


def _is_ours(path: Path) -> bool:
    below = path.relative_to(places.models_dir()).as_posix()
    return _OURS.fullmatch(below) is not None and places.is_ours(path)


def _size(path: Path) -> int:
    """Bytes freed by removing a file or folder; 0 for a link, or if another process removed it."""
    try:
        if path.is_dir() and not path.is_symlink():
            return sum(map(_size, path.iterdir()))
        return 0 if path.is_symlink() else path.stat().st_size
    except FileNotFoundError:
        return 0


def _used(pairs: Iterable[Pair]) -> dict[Path, str]:
    """Files of pairs that are here as a whole, and all of the user's own: each with a pair's name."""
    return {
        places.path_of(file): pair.name
        for pair in pairs
        for file in (pair.singles if pair.on_disk else [file for file in pair.files if not file.repo])
    }


def _removed(unwanted: Iterable[Path], kept: list[tuple[str, str]]) -> Removal:
    removed: list[Path] = []
    freed = 0
    for path in unwanted:
        try:
            size = _size(path)
            _unlink(path)
        except OSError as error:
            raise of_system(error, path.name, "removed") from error
        removed.append(path)
        freed += size
    return Removal(tuple(removed), freed, tuple(kept))


def _unlink(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    places.forget_sha256(path)
    _remove_empty_folders(path)


def _remove_empty_folders(path: Path) -> None:
    for folder in (path.parent, path.parent.parent):
        if places.is_ours(folder):
            with suppress(OSError):  # there is something in it, or has just been put there
                folder.rmdir()
