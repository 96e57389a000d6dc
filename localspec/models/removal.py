"""Taking a pair off the disk without taking files that another pair uses."""

from dataclasses import dataclass
from pathlib import Path

from localspec.errors import BadSetting
from localspec.locks import FileLock
from localspec.models import stamps, store
from localspec.models.hub_errors import of_system
from localspec.models.partial import part_of
from localspec.models.registry import HubFile, Pair, all_pairs


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of the files of a pair."""

    removed: tuple[Path, ...]
    freed: int  # bytes
    kept: tuple[tuple[str, str], ...]  # file and why


def remove(pair: Pair) -> Removal:
    """Remove what localspec fetched for this pair alone. Raises BadSetting, DownloadFailed."""
    removed: list[Path] = []
    kept: list[tuple[str, str]] = []
    freed = 0
    for file in pair.files:
        if not isinstance(file, HubFile):
            kept.append((str(file.path), "it is a file of yours"))
            continue
        final = store.place(file)
        users = [other.name for other in all_pairs() if other.name != pair.name and file in other.files]
        users = [name for name in users if _is_wanted(name)]
        if users and final.exists():
            kept.append((file.name, f"{users[0]} uses it"))
            continue
        for path in (final, part_of(final)):
            if path.exists():
                freed += path.stat().st_size
                _unlink(path, file.name)
                removed.append(path)
        if not final.exists() and (cached := store.locate(file)):
            kept.append((str(cached), "it belongs to the Hugging Face cache"))
    return Removal(tuple(removed), freed, tuple(kept))


def _is_wanted(name: str) -> bool:
    """Whether another pair is here as a whole, so that it would miss the file."""
    return any(pair.name == name and store.on_disk(pair) for pair in all_pairs())


def _unlink(path: Path, name: str) -> None:
    lock = FileLock(path.with_name(path.name.removesuffix(".part") + ".lock"))
    try:
        if not lock.try_acquire():
            raise BadSetting(f"{name} is being fetched right now", hint="stop that pull first")
        try:
            path.unlink()
            stamps.forget(path)
        finally:
            lock.release()
        for folder in (path.parent, path.parent.parent):
            if not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise of_system(error, name) from error
