"""Remove the files of a pair, and leftover files, unless another pair uses them."""

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
from localspec.models import local_models
from localspec.models.local_models import PART, part_of, projectors_of, pull_lock
from localspec.models.registry import Pair, all_pairs, unreadable_pairs
from localspec.options import cache_dir

_PULL_RUNS = "a pull is running, so nothing can be removed", "stop that pull first"
_OURS = re.compile(r".+--.+/[0-9a-f]{12}/.+")  # paths of downloaded files in the folder models/


@dataclass(frozen=True, slots=True)
class Removal:
    removed: tuple[Path, ...]
    freed: int  # bytes of the removed files
    kept: tuple[tuple[str, str], ...]  # name of a file, and why it was kept


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that localspec fetched or made and that no complete pair uses."""

    path: Path
    bytes: int
    pair: str | None  # name of an incomplete pair that needs the file, or None


def remove(pair: Pair) -> Removal:
    """Remove files that localspec fetched or made for this pair alone. Raises BadSetting, DownloadFailed."""
    used = _used(
        other for other in all_pairs() if other.name != pair.name and other.listed and not other.found
    )
    unread = next((f"{name}.toml" if name else "pairs.d" for name in unreadable_pairs()), "")
    unwanted: list[Path] = []
    kept: list[tuple[str, str]] = []
    for file in local_models.distinct(pair.singles):
        place, user = file.place, used.get(local_models.path_of(file))
        fitted = lies_in(place, local_models.fitted_dir())
        why = ""
        if not (file.repo or fitted):
            embedded = place in (demo.target_path(), demo.draft_path())
            theirs = f"it belongs to {pair.found.store}" if pair.found else "it is a file of yours"
            why = "it comes with localspec" if embedded else theirs
        elif place.exists() and (user or unread):
            why = f"{user} uses it" if user else f"{unread} cannot be read and may use it"
        if why:
            kept.append((file.name if file.repo or fitted else file.file, why))
            continue
        names = list(filter(os.path.lexists, (place, part_of(place), *([table_path(place)] * fitted))))
        if fitted and any((folder := place.with_suffix("")).glob("*.npz*")):
            why = "`localspec fit` can resume from these answers; `localspec rm --unused` removes them"
            kept.append((str(folder), why))
        if fitted or local_models.is_ours(place):
            unwanted += names
        else:
            kept += [(str(name), "a link leads to its folder") for name in names]
        if not place.exists() and (cached := file.path):
            kept.append((str(cached), "it belongs to another program"))
    unwanted += [
        path for path in projectors_of(pair.target.repo) if path.resolve() not in used and not unread
    ]
    with alone(pull_lock(), *_PULL_RUNS):
        return _removed(unwanted, kept)


def enlarged_demo() -> tuple[Path, ...]:
    return tuple(sorted((cache_dir() / "demo").glob("*.gguf*")))


def remove_enlarged_demo() -> Removal:
    return _removed(enlarged_demo(), [])


def prune() -> Removal:
    if reasons := list(unreadable_pairs().values()):  # a pair that cannot be read may use any file
        raise reasons[0]
    with alone(pull_lock(), *_PULL_RUNS):
        return _removed([leftover.path for leftover in leftovers(all_pairs())], [])


def leftovers(pairs: Iterable[Pair]) -> tuple[Leftover, ...]:
    """Return files of pulls and of `localspec fit` that no pair uses; () if a pair cannot be read."""
    pulled = sorted(local_models.models_dir().glob("*/*/*"))
    made = sorted(local_models.fitted_dir().glob("*"))
    if not (pulled or made) or unreadable_pairs():
        return ()
    pairs = [pair for pair in pairs if pair.listed and not pair.found]
    used = _used(pairs)
    named = {local_models.path_of(file): pair.name for pair in pairs for file in pair.hub_files}
    left = []
    for path in pulled:
        final = Path(os.path.realpath(path.with_suffix("") if path.suffix == PART else path))
        is_ours = local_models.is_ours(path) and _OURS.fullmatch(
            path.relative_to(local_models.models_dir()).as_posix()
        )
        if is_ours and final not in used and not path.is_dir():
            left.append(Leftover(path, size_of(path), named.get(final)))
    for path in made:
        name = path.name if path.is_dir() else path.name.removesuffix(".gguf").removesuffix(".tokens")
        draft = Path(os.path.realpath(path.with_name(f"{name}.gguf")))
        is_made = path.is_dir() or path.suffix == ".gguf"
        lock = path.with_name(name) / "lock"
        making = FileLock(lock)  # `localspec fit` holds this lock while it runs
        free = not lock.exists() or making.try_acquire()
        making.release()
        if is_made and draft not in used and free:
            left.append(Leftover(path, size_of(path), None))
    return tuple(left)


def size_of(path: Path) -> int:
    """Return the bytes that the removal of a file or folder frees; 0 for a link or a missing file."""
    try:
        if path.is_dir() and not path.is_symlink():
            return sum(map(size_of, path.iterdir()))
        return 0 if path.is_symlink() else path.stat().st_size
    except FileNotFoundError:
        return 0


def _used(pairs: Iterable[Pair]) -> dict[Path, str]:
    """Return the files in use, each with the name of a pair. Downloaded files of incomplete pairs do not count."""
    used = dict[Path, str]()
    for pair in pairs:
        files = pair.singles if pair.on_disk else [file for file in pair.files if not file.repo]
        paths = [*map(local_models.path_of, files)]
        paths += [path.resolve() for path in projectors_of(pair.target.repo)] if pair.on_disk else []
        used |= dict.fromkeys(paths, pair.name)
    return used


def _removed(unwanted: Iterable[Path], kept: list[tuple[str, str]]) -> Removal:
    removed, freed = list[Path](), 0
    for path in unwanted:
        try:
            size = size_of(path)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        except OSError as error:
            from localspec.models.hub import of_system  # imported late, because `localspec list` needs no Hub

            raise of_system(error, path.name, "removed") from error
        for folder in filter(local_models.is_ours, (path.parent, path.parent.parent)):
            with suppress(OSError):  # the folder may have other files
                folder.rmdir()
        removed.append(path)
        freed += size
    return Removal(tuple(removed), freed, tuple(kept))
