"""Files that carry what was learned to the next run: JSON, replaced atomically, set aside when damaged."""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from localspec.files import set_aside, write_text_atomically
from localspec.typed_json import read_as

VERSION = 4
T = TypeVar("T")


class Store:
    """One file for each key: which files, device, driver and threads the numbers belong to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: Mapping[str, str]) -> Path:
        return self._folder / f"{hashlib.sha256(_text(key).encode()).hexdigest()[:24]}.json"

    def load(self, key: Mapping[str, str], kind: type[T]) -> T | None:
        """What was stored for exactly this key; None when there is nothing usable.

        A file that cannot be read as `kind` is renamed to `*.damaged`, so that the next save starts afresh.
        """
        path = self.path(key)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["version"] != VERSION or stored["key"] != dict(key):
                raise ValueError("written by another version or for another key")
            return read_as(kind, stored["value"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            with suppress(OSError):  # unreadable and immovable: the next save says so
                set_aside(path)
            return None

    def save(self, key: Mapping[str, str], value: object) -> None:
        """Write a dataclass. OSError when the folder cannot be written.

        Whoever asked for a reply waits for this, so nobody waits for the disk: a power cut may damage the file.
        """
        stored = {"version": VERSION, "key": dict(key), "value": dataclasses.asdict(typing.cast(Any, value))}
        write_text_atomically(self.path(key), json.dumps(stored), lasting=False)


def _text(key: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(key.items())))
