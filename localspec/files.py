"""Paths as people write them, and small files that are there as a whole or not at all."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from localspec.errors import BadSetting


def expanded(path: str | Path) -> Path:
    """The path with `~` or `~NAME` at its beginning spelled out. Raises BadSetting for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadSetting(
            f"{path} begins with the folder of a user that this machine does not know",
            hint="write the path out",
        ) from None


def write_text_atomically(path: Path, text: str) -> None:
    """`write_atomically` in UTF-8."""
    write_atomically(path, text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file so that a reader sees the old content or the new one, never a part of it.

    A new file is its owner's only; an old one keeps its mode, and a link to one stays a link. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        with suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
