"""Models in several files, called NAME-00001-of-0000N.gguf as llama.cpp's gguf-split calls them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TypeVar

from localspec.errors import BadModelFile
from localspec.gguf.header import Header, TensorInfo

_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_AnyPath = TypeVar("_AnyPath", bound=PurePath)
_HINT = "put all parts into one folder, under the names that they were given"


def parts_of(path: _AnyPath) -> tuple[_AnyPath, ...]:
    """The files of the model that a file belongs to, going by its name; the file itself where it is the only one."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return (path,)
    return tuple(path.with_name(f"{found[1]}-{i:05}-of-{found[2]}.gguf") for i in range(1, int(found[2]) + 1))


def joined(path: Path, headers: Sequence[Header]) -> Header:
    """One header for the parts of a model, in their order. Raises BadModelFile where they do not go together."""
    first = headers[0]
    tensors: list[TensorInfo] = []
    offset = 0
    for number, header in enumerate(headers):
        if (header.number("split.no"), header.number("split.count")) != (number, len(headers)):
            raise BadModelFile(
                f"{parts_of(path)[number].name} is not part {number + 1} of {len(headers)} of a model",
                hint=_HINT,
            )
        for tensor in header.tensors:
            tensors.append(replace(tensor, offset=offset))
            offset += (tensor.bytes + first.alignment - 1) // first.alignment * first.alignment
    return replace(
        first,
        entries={key: entry for key, entry in first.entries.items() if not key.startswith("split.")},
        tensors=tuple(tensors),
        file_bytes=sum(header.file_bytes for header in headers),
    )


def require_parts(path: Path, count: int) -> tuple[Path, ...]:
    """The parts of a model in `count` files, all of which are there. Raises BadModelFile."""
    parts = parts_of(path)
    if len(parts) != count:
        raise BadModelFile(f"{path.name} is one of {count} parts of a model, and not called so", hint=_HINT)
    for part in parts:
        if not part.is_file():
            raise BadModelFile(f"{part.name} is missing, one of the {count} parts of a model", hint=_HINT)
    return parts
