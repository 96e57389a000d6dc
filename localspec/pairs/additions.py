"""Writing pairs of the user's own, one file each, and taking them out of the files they are in."""

import json
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

from localspec.errors import BadSetting
from localspec.files import write_text_atomically
from localspec.locks import locked
from localspec.pairs.registry import (
    HubFile,
    ModelFile,
    Pair,
    all_pairs,
    stays_inside,
    users_files,
    users_folder,
    valid_name,
)


def add_pair(pair: Pair) -> Path:
    """Write a pair, in place of an earlier one of the same name; returns its file. Raises BadSetting, OSError."""
    if not valid_name(pair.name):
        raise BadSetting(
            f"a pair cannot be called {pair.name}",
            hint="use lower-case letters, digits and . _ + -, beginning with a letter or a digit",
        )
    all_pairs()  # a file that cannot be read is not written over
    path = _place(pair.name)
    for other in users_files()[1:]:
        names = _names(_text(other))
        if names != [pair.name] if other == path else pair.name in names:
            raise _by_hand(other, f"{pair.name} cannot be written")
    write_text_atomically(path, "# The fields are explained in localspec's models.toml.\n" + _block(pair))
    return path


def take_out(name: str) -> tuple[Path, ...]:
    """Take a pair out of the user's files, which are returned; the model files stay where they are.

    Raises BadSetting where only a person can tell what belongs to it, OSError.
    """
    changed = []
    with locked(users_folder()):
        for path in users_files():
            text = _text(path)
            if name not in _names(text):
                continue
            if path == _place(name) and _names(text) == [name]:
                path.unlink()
            else:
                write_text_atomically(path, _without(path, text, name))
            changed.append(path)
    return tuple(changed)


def _place(name: str) -> Path:
    """The file of a pair; no pair is called _NAME, and Windows has devices that are."""
    return users_folder() / f"{'' if stays_inside(name) else '_'}{name}.toml"


def _without(path: Path, text: str, name: str) -> str:
    """The text without the tables of that pair; all others stay as they were written, comments too."""
    lines = text.splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if _tables(line) == [{}]]
    gone: set[int] = set()
    for head, end in pairwise([*heads, len(lines)]):
        if name in _names("".join(lines[head:end])):
            while head and lines[head - 1].lstrip().startswith("#"):
                head -= 1
            while lines[end - 1].lstrip()[:1] in ("", "#"):  # about what follows
                end -= 1
            gone.update(range(head, end))
    left = "".join(line for number, line in enumerate(lines) if number not in gone)
    if _tables(left) != [table for table in _tables(text) if table.get("name") != name]:
        raise _by_hand(path, f"{name} cannot be taken out of it")
    return left


def _by_hand(path: Path, what: str) -> BadSetting:
    return BadSetting(f"{path} was written by hand: {what}", hint="change the file by hand")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""


def _names(text: str) -> list[object]:
    return [table.get("name") for table in _tables(text)]


def _tables(text: str) -> list[dict[str, Any]]:
    """The pairs in a text; none where it is only a piece of TOML."""
    try:
        tables: list[dict[str, Any]] = tomllib.loads(text).get("pair", [])
    except tomllib.TOMLDecodeError:
        return []
    return tables


def _block(pair: Pair) -> str:
    lines = ["[[pair]]", _line("name", pair.name), _line("kind", pair.kind.value), _line("use", pair.use)]
    if pair.aliases:
        lines.append(_line("aliases", list(pair.aliases)))
    if pair.context:
        lines.append(_line("context", pair.context))
    lines += [
        _line("starting_depth", pair.starting_depth),
        _line("starting_depth_from", pair.starting_depth_from),
    ]
    for role, file in zip(("target", "draft"), pair.files, strict=False):
        lines += [f"[pair.{role}]", *_file_lines(file)]
    return "\n".join(lines) + "\n"


def _file_lines(file: ModelFile) -> list[str]:
    if isinstance(file, HubFile):
        lines = [_line("repo", file.repo), _line("file", file.file), _line("revision", file.revision)]
    else:
        lines = [_line("path", str(file.path))]
    lines += [_line("bytes", file.bytes or 0), _line("sha256", file.sha256 or "")]
    if isinstance(file, HubFile) and file.rest:
        parts = ", ".join(f"{{ {', '.join(_file_of_part(part))} }}" for part in file.rest)
        lines.append(f"parts = [{parts}]")
    facts = file.facts
    numbers = ("layers", "kv_bytes_per_token", "window", "window_layers", "embedding_bytes", "output_bytes")
    known = {key: getattr(facts, key) for key in numbers if getattr(facts, key) is not None}
    return lines + [_line(key, value) for key, value in known.items()]


def _file_of_part(part: HubFile) -> list[str]:
    return [_line("file", part.file), _line("bytes", part.bytes), _line("sha256", part.sha256)]


def _line(key: str, value: str | int | list[str]) -> str:
    """A TOML line; JSON's strings are TOML's basic strings, but for DEL."""
    return f"{key} = {json.dumps(value, ensure_ascii=False).replace(chr(127), '?')}"
