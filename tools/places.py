"""Where the rows and columns of a small llama stand in a larger one that computes the same function."""

from dataclasses import dataclass
from math import ceil

import numpy as np


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a llama."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int


class UnfitError(ValueError):
    """The source cannot be embedded in the wanted shape."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the old rows and columns stand in the new tensors."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    """Columns of the output matrix that read the old heads."""
    value_source: np.ndarray
    """Old value row for each of `value`, since key and value heads may be there more than once."""
    key_source: np.ndarray
    constant: int | None
    """The hidden column that holds the constant, if there are extra tokens."""


def head_rows(heads: np.ndarray, old: int, new: int, stretch: int) -> np.ndarray:
    """Rows of each head in the new tensor: rotary pairs `stretch` apart, or plain rows for a stretch of 1."""
    row = np.arange(old)
    inside = row // 2 * 2 * stretch + row % 2
    return (heads[:, None] * new + inside).ravel()


def place(old: Shape, new: Shape) -> Places:
    """Find a place for every old head, column and unit."""
    check(old, new)
    old_group, group = old.heads // old.kv_heads, new.heads // new.kv_heads
    copies = ceil(old_group / group)
    head = np.arange(old.heads)
    kv, inside = head // old_group, head % old_group
    new_heads = (kv * copies + inside // group) * group + inside % group
    new_kv = np.arange(old.kv_heads * copies)
    kv_source = np.repeat(np.arange(old.kv_heads), copies)
    stretch = new.head_width // old.head_width
    rows = (old.head_width, new.head_width)
    return Places(
        query=head_rows(new_heads, *rows, stretch),
        key=head_rows(new_kv, *rows, stretch),
        value=head_rows(new_kv, *rows, 1),
        output=head_rows(new_heads, *rows, 1),
        value_source=head_rows(kv_source, old.head_width, old.head_width, 1),
        key_source=head_rows(kv_source, old.head_width, old.head_width, 1),
        constant=constant_column(old, new),
    )


def constant_column(old: Shape, new: Shape) -> int | None:
    """A column in a block of its own, of 256 where the width allows: K-quants would round it away."""
    if new.vocab == old.vocab:
        return None
    for block in (256, 32):
        if (column := ceil(old.width / block) * block) + block <= new.width:
            return column
    raise UnfitError(f"extra tokens need a width of at least {ceil(old.width / 32) * 32 + 32}")


def check(old: Shape, new: Shape) -> None:
    """Refuse shapes that the small model does not fit into."""
    copies = ceil((old.heads // old.kv_heads) / (new.heads // new.kv_heads))
    wrong = [
        name
        for name, bad in {
            "width": new.width < old.width or new.width % 32,
            "layers": new.layers < old.layers,
            "heads": new.heads % new.kv_heads or new.heads < old.heads,
            "kv-heads": new.kv_heads < old.kv_heads * copies,
            "head-width": new.head_width % old.head_width,
            "ffn": new.ffn < old.ffn or new.ffn % 32,
            "vocab": new.vocab < old.vocab,
        }.items()
        if bad
    ]
    if wrong:
        raise UnfitError(f"{', '.join(wrong)}: {old} does not fit into {new}")
