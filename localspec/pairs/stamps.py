"""What has been found out about a file and holds for as long as its size and time stay the same."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec import settings
from localspec.files import write_text_atomically
from localspec.typed_json import read_as

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as it was when its bytes were hashed."""

    path: str
    bytes: int
    mtime_ns: int
    sha256: str


def read(path: Path) -> Stamp | None:
    """The stamp of a file; None when it has none, or when the file is no longer the one that was stamped."""
    try:
        fields = json.loads(_stamp_file(path).read_text("utf-8"))
        fields.pop("decoded_with", None)  # of earlier versions
        stamp = read_as(Stamp, fields)
        now = path.stat()
    except (OSError, ValueError, AttributeError):
        return None
    same = (stamp.path, stamp.bytes, stamp.mtime_ns) == (str(path.resolve()), now.st_size, now.st_mtime_ns)
    return stamp if same else None


def write(path: Path, sha256: str) -> Stamp:
    """Stamp a file whose bytes have just been hashed."""
    now = path.stat()
    stamp = Stamp(str(path.resolve()), now.st_size, now.st_mtime_ns, sha256)
    _store(stamp)
    return stamp


def forget(path: Path) -> None:
    _stamp_file(path).unlink(missing_ok=True)


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """The SHA-256 of a file in hexadecimal; `on_bytes` hears how many bytes each step read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def _store(stamp: Stamp) -> None:
    write_text_atomically(_stamp_file(Path(stamp.path)), json.dumps(asdict(stamp)))


def _stamp_file(path: Path) -> Path:
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    return settings.data_dir() / "stamps" / f"{key}.json"
