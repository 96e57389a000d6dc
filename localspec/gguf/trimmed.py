"""Trimmed drafts: a model file with fewer output rows, and a table of all embeddings.

llama.cpp wants as many output rows as tokens, but takes embeddings in place of tokens. So a trimmed model has no
tokenizer. A second file has every token's embedding and the token of each output row. A hash ties both.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.errors import BadModelFile
from localspec.gguf.facts import is_trimmed
from localspec.gguf.header import Header, TensorInfo, header_at
from localspec.gguf.writing import tensor_at

TABLE_HASH = "localspec.trimmed.table"  # sha256 of the table's tensors, in both files
PROVENANCE = "localspec.fitted"  # texts: the source of a draft and its training
EMBEDDINGS, TOKEN_IDS = "token_embd.weight", "token_ids"
# Architectures whose graphs take embeddings, and the factor by which each multiplies those of tokens.
SCALES = {
    "llama": lambda width: 1.0,
    "qwen2": lambda width: 1.0,
    "qwen3": lambda width: 1.0,
    "gemma3": lambda width: float(np.sqrt(width)),
}


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The table of a trimmed model: embeddings, and the token of each output row."""

    embeddings: np.ndarray  # uint8 [tokens, bytes of a row], quantised, in the file
    type: int  # of its elements, see header.BLOCKS
    width: int  # elements of a row
    scale: float
    token_ids: np.ndarray  # int32 [output rows], ascending: the token that each row stands for

    @property
    def count(self) -> int:
        """Tokens that it can read."""
        return len(self.embeddings)

    def output_tokens(self, count: int) -> int:
        """Number of output rows for the first `count` tokens."""
        return int(self.token_ids.searchsorted(count))


def table_path(model: Path) -> Path:
    """The second file of a trimmed model."""
    return model.with_name(f"{model.stem}.tokens.gguf")


def token_table(model: Path, header: Header) -> TokenTable | None:
    """The table of a trimmed model; None for another model. Raises BadModelFile if it is missing, damaged or of another
    draft.
    """
    if not is_trimmed(header):
        return None
    path = table_path(model)
    hint = f"make the draft again: localspec fit; or put {path.name} of the same draft beside it"
    if not path.exists():
        raise BadModelFile(f"{model.name} is trimmed and needs {path.name}, which is not there", hint=hint)
    table = header_at(path)
    tensors = {tensor.name: tensor for tensor in table.tensors}
    architecture = header.architecture
    if (
        table.text(TABLE_HASH) != header.text(TABLE_HASH)
        or tensors.keys() != {EMBEDDINGS, TOKEN_IDS}
        or architecture not in SCALES
    ):
        raise BadModelFile(f"{path.name} does not belong to {model.name}", hint=hint)
    embeddings, ids = tensors[EMBEDDINGS], tensors[TOKEN_IDS]
    found = TokenTable(
        tensor_at(path, embeddings, table.data_offset),
        embeddings.type,
        embeddings.shape[0],
        SCALES[architecture](embeddings.shape[0]),
        tensor_at(path, ids, table.data_offset).view(np.int32).ravel(),
    )
    if not _fits(found, header):
        raise BadModelFile(f"{path.name} is damaged", hint=hint)
    return found


def _fits(table: TokenTable, header: Header) -> bool:
    """Whether the sizes in both files agree, so that no read goes beyond the end."""
    ids, rows = table.token_ids, output_tensor(header)
    return (
        rows.shape == (table.width, len(ids))
        and bool((np.diff(ids) > 0).all())
        and int(ids[0]) >= 0
        and int(ids[-1]) < table.count
    )


def output_tensor(header: Header) -> TensorInfo:
    """A model's output matrix: its own, or its embeddings. Raises BadModelFile."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    found = tensors.get("output.weight") or tensors.get(EMBEDDINGS)
    if found is None:
        raise BadModelFile("the file has no output matrix", hint="use a whole model")
    return found
