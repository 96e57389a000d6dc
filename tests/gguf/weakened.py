"""A real model with some of its layers silenced: a draft for it that is right often and wrong often."""

import shutil
from collections.abc import Collection
from pathlib import Path

from localspec.gguf.header import header_at

_ADDED = ("attn_output.weight", "ffn_down.weight")  # what a layer adds to the stream goes through these


def weakened(source: Path, out: Path, layers: Collection[int]) -> Path:
    """Write a copy in which these layers add nothing, and return its path."""
    shutil.copyfile(source, out)
    header = header_at(source)
    silent = {f"blk.{layer}.{name}" for layer in layers for name in _ADDED}
    with out.open("r+b") as file:
        for tensor in header.tensors:
            if tensor.name in silent:
                file.seek(header.data_offset + tensor.offset)
                file.write(bytes(tensor.bytes))  # zeros, in every type of tensor
    return out
