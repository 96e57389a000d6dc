"""Write GGUF files, and read trimmed drafts: models that have output rows for only some of their tokens.

llama.cpp refuses a tokenizer with more tokens than output rows. So a trimmed model reads embeddings instead of
tokens. A second file, its table, has the embedding of every token, and the token of each output row.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from localspec.errors import BadModelFile
from localspec.files import rename
from localspec.gguf.facts import is_trimmed, table_path
from localspec.gguf.header import (
    BLOCKS,
    STRING,
    TOKENS,
    Entry,
    Header,
    HeaderVocabulary,
    TensorInfo,
    header_at,
)

UINT32 = 4


class TensorBytes(NamedTuple):
    name: str
    shape: tuple[int, ...]  # innermost dimension first, as in the file
    type: int  # a key of header.BLOCKS
    data: np.ndarray  # contiguous, in memory or mapped from another file


def write_gguf(
    path: Path,
    entries: Mapping[str, Entry],
    tensors: Iterable[tuple[str, tuple[int, ...], int, np.ndarray | Callable[[], np.ndarray]]],
    vocabulary: HeaderVocabulary | None = None,
) -> Path:
    """Write a model file, whose name ends with .part until it is complete. Raises OSError."""
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

    tensors, part = list(tensors), path.with_name(path.name + ".part")
    writer = GGUFWriter(part, str(entries["general.architecture"].value))
    if vocabulary is not None:
        writer.add_key_value(TOKENS, [*vocabulary.texts()], GGUFValueType.ARRAY, GGUFValueType.STRING)
    for key, entry in entries.items():
        if key not in (TOKENS, "general.architecture", "general.alignment") and entry.value not in (None, ()):
            element = None if entry.element_type is None else GGUFValueType(entry.element_type)
            writer.add_key_value(key, entry.value, GGUFValueType(entry.type), element)
    for name, shape, kind, _ in tensors:
        _, elements, block_bytes = BLOCKS[kind]
        size = math.prod(shape) // elements * block_bytes
        writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), size, GGMLQuantizationType(kind))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for *_, data in tensors:
            writer.write_tensor_data(data() if callable(data) else data)
        writer.close()
        rename(part, path)
    except BaseException:
        with suppress(OSError):
            writer.close()
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return path


def text_entry(value: str) -> Entry:
    return Entry(STRING, value)


def tensor_at(path: Path, tensor: TensorInfo, data_offset: int) -> np.ndarray:
    _, elements, block_bytes = BLOCKS[tensor.type]
    row_bytes = tensor.shape[0] // elements * block_bytes
    return np.memmap(path, np.uint8, "r", data_offset + tensor.offset, (tensor.bytes // row_bytes, row_bytes))


class TensorFile:
    def __init__(self, path: Path) -> None:
        self.path, self.header = path, header_at(path)
        self.tensors = {tensor.name: tensor for tensor in self.header.tensors}

    def stored(self, name: str) -> TensorBytes:
        found = self.tensors[name]
        return TensorBytes(
            name, found.shape, found.type, tensor_at(self.path, found, self.header.data_offset)
        )

    def tensor(self, name: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return `rows` of a matrix in float32, by default the whole tensor."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        found = self.tensors[name]
        values = dequantize(self.stored(name).data[rows], GGMLQuantizationType(found.type))
        return np.array(values, np.float32).reshape(-1, *found.shape[-2::-1])


TABLE_HASH = "localspec.trimmed.table"  # header key for the sha256 of the table's tensors, in both files
PROVENANCE = "localspec.fitted"  # header key for texts about a draft's source and training
EMBEDDINGS, TOKEN_IDS = "token_embd.weight", "token_ids"
# Architectures whose graph accepts embeddings, and the factor by which it multiplies each embedding.
SCALES = {
    "llama": lambda width: 1.0,
    "qwen2": lambda width: 1.0,
    "qwen3": lambda width: 1.0,
    "gemma3": lambda width: float(np.sqrt(width)),
}


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The table of a trimmed model, with the embedding of every token and the token of each output row."""

    embeddings: np.ndarray  # uint8 [tokens, bytes of an embedding]; quantised, mapped from the file
    type: int  # a key of header.BLOCKS
    width: int  # values in an embedding
    scale: float  # the factor that SCALES gives for this model
    token_ids: np.ndarray  # int32 [output rows], the token of each row, ascending

    @property
    def count(self) -> int:
        return len(self.embeddings)

    def output_tokens(self, count: int) -> int:
        """Return how many of the first `count` tokens have an output row."""
        return int(self.token_ids.searchsorted(count))


def token_table(model: Path, header: Header) -> TokenTable | None:
    """Return the table of a trimmed model; None for another model. Raises BadModelFile for a wrong table."""
    if not is_trimmed(header):
        return None
    path = table_path(model)
    hint = f"put this draft's {path.name} into the same folder, or make the draft again with `localspec fit`"
    if not path.exists():
        raise BadModelFile(f"{model.name} needs a second file, {path.name}, which is missing", hint=hint)
    own = header_at(path)
    tensors = {tensor.name: tensor for tensor in own.tensors}
    scale = SCALES.get(header.architecture)
    same = own.text(TABLE_HASH) == header.text(TABLE_HASH)
    if scale is None or not same or tensors.keys() != {EMBEDDINGS, TOKEN_IDS}:
        raise BadModelFile(f"{path.name} does not belong to {model.name}", hint=hint)
    embeddings, ids = tensors[EMBEDDINGS], tensors[TOKEN_IDS]
    table = TokenTable(
        tensor_at(path, embeddings, own.data_offset),
        embeddings.type,
        embeddings.shape[0],
        scale(embeddings.shape[0]),
        tensor_at(path, ids, own.data_offset).view(np.int32).ravel(),
    )
    rows = table.token_ids
    ascending = bool((np.diff(rows) > 0).all()) and 0 <= int(rows[0]) <= int(rows[-1]) < table.count
    if output_tensor(header).shape != (table.width, len(rows)) or not ascending:
        raise BadModelFile(f"{path.name} is damaged", hint=hint)
    return table


def output_tensor(header: Header) -> TensorInfo:
    """Return a model's output matrix or, without one, its embeddings. Raises BadModelFile if it has neither."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    output = tensors.get("output.weight") or tensors.get(EMBEDDINGS)
    if output is None:
        name = header.text("general.name") or "this model"
        raise BadModelFile(f"{name} has no output layer", hint="use a file with the whole model")
    return output
