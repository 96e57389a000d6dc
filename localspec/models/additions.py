"""Writing pairs into the user's own models.toml, and taking them out of it."""

import json
import re
from pathlib import Path

from localspec.errors import BadSetting
from localspec.models.registry import HubFile, ModelFile, Pair, all_pairs, user_file, valid_name
from localspec.models.stamps import write_text_atomically


def add_pair(pair: Pair) -> Path:
    """Write a pair, in place of one of the same name there; returns the file. Raises BadSetting."""
    if not valid_name(pair.name):
        raise BadSetting(
            f"A pair cannot be called {pair.name}.",
            hint="Use lower-case letters, digits and . _ + -, beginning with a letter or a digit.",
        )
    all_pairs()  # a file that cannot be read is not written over
    path = user_file()
    text = (
        path.read_text("utf-8")
        if path.exists()
        else "# Your own pairs; the fields are explained in localspec's models.toml.\n"
    )
    write_text_atomically(path, _without(text, pair.name).rstrip() + "\n\n" + _block(pair))
    return path


def take_out(name: str) -> Path:
    """Take a pair out of the user's file, which is returned; the files of the pair stay where they are."""
    path = user_file()
    write_text_atomically(path, _without(path.read_text("utf-8"), name).rstrip() + "\n")
    return path


def _without(text: str, name: str) -> str:
    blocks = re.split(r"^(?=\[\[pair\]\])", text, flags=re.MULTILINE)
    return "".join(block for block in blocks if not _defines(block, name))


def _defines(block: str, name: str) -> bool:
    return re.search(rf"^name\s*=\s*[\"']{re.escape(name)}[\"']\s*(#.*)?$", block, re.MULTILINE) is not None


def _block(pair: Pair) -> str:
    lines = ["[[pair]]", _line("name", pair.name), _line("kind", pair.kind.value), _line("use", pair.use)]
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
    facts = file.facts
    numbers = {"layers": facts.layers, "kv_bytes_per_token": facts.kv_bytes_per_token}
    return lines + [_line(key, value) for key, value in numbers.items() if value is not None]


def _line(key: str, value: str | int) -> str:
    """A TOML line; JSON's strings are TOML's basic strings, but for DEL."""
    return f"{key} = {json.dumps(value, ensure_ascii=False).replace(chr(127), '?')}"
