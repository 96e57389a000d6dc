"""Writing pairs into the user's own models.toml, and taking them out of it."""

import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from localspec.errors import BadSetting
from localspec.files import write_text_atomically
from localspec.pairs.registry import HubFile, ModelFile, Pair, all_pairs, user_file, valid_name

# A new table in every way in which TOML lets one write it, and each line of the comment right above it.
_HEAD = re.compile(
    r"""^(?=(?:[ \t]*\#.*\n)*[ \t]*\[\[[ \t]*(?:pair|"pair"|'pair')[ \t]*\]\])""", re.MULTILINE
)


def add_pair(pair: Pair) -> Path:
    """Write a pair, in place of one of the same name there; returns the file. Raises BadSetting, OSError."""
    if not valid_name(pair.name):
        raise BadSetting(
            f"a pair cannot be called {pair.name}",
            hint="use lower-case letters, digits and . _ + -, beginning with a letter or a digit",
        )
    all_pairs()  # a file that cannot be read is not written over
    path = user_file()
    text = (
        path.read_text("utf-8")
        if path.exists()
        else "# Your own pairs; the fields are explained in localspec's models.toml.\n"
    )
    others = _without(text, pair.name).rstrip()
    written = f"{others}\n\n{_block(pair)}"
    if _names(written) != [*_names(others), pair.name]:
        raise _by_hand(f"{pair.name} cannot be added to it")
    write_text_atomically(path, written)
    return path


def take_out(name: str) -> Path:
    """Take a pair out of the user's file, which is returned; the files of the pair stay where they are.

    Raises BadSetting where only a person can tell what belongs to it, OSError.
    """
    path = user_file()
    write_text_atomically(path, _without(path.read_text("utf-8"), name).rstrip() + "\n")
    return path


def _without(text: str, name: str) -> str:
    """The text without the tables of that pair; all others stay as they were written, comments too."""
    left = "".join(_set_apart(block) if name in _names(block) else block for block in _HEAD.split(text))
    if _tables(left) != [table for table in _tables(text) if table.get("name") != name]:
        raise _by_hand(f"{name} cannot be taken out of it")
    return left


def _set_apart(block: str) -> str:
    """The comments at the end of a table that a blank line parts from it: they are not about it."""
    lines = block.splitlines(keepends=True)
    end = list(itertools.takewhile(lambda line: line.strip()[:1] in ("", "#"), reversed(lines)))[::-1]
    return "".join(itertools.dropwhile(str.strip, end))


def _by_hand(what: str) -> BadSetting:
    return BadSetting(
        f"{user_file()} does not write its pairs as [[pair]] tables: {what}", hint="change the file by hand"
    )


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
