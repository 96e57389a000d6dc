"""Greedy texts of one target, which part only at a near-tie: where rounding decides between two tokens."""

from contextlib import suppress
from itertools import combinations

import numpy as np

from localspec.errors import RollbackUnsupported

WIDTHS = (1, 2, 4, 9, 128)  # llama.cpp adds up in another order at some of these widths of a pass


def row_after(target, tokens, width, more=()):
    """The row after a text, from passes of `width` tokens; `more`: tokens read with the text and rolled back."""
    target.rollback(0)
    *before, last = tokens
    read = [*before, *more]
    for start in range(0, len(read), width):
        target.decode(read[start : start + width], 0)
    target.rollback(len(before))
    return np.array(target.decode([last], 1).rows[0])


def part_at_a_near_tie(target, prompt, one, other):
    """Whether two replies to a prompt are equal, or part where the likeliest tokens differ by what rounding moves."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return len(one) == len(other)
    text = [*prompt, *one[:at]]
    usual, target.chunk = target.chunk, max(WIDTHS)  # `decode` splits wider passes
    rows = [row_after(target, text, width) for width in WIDTHS]
    with suppress(
        RollbackUnsupported
    ):  # the beginning of a text may have been read in a wide pass of another text
        room = min(128, target.capacity - len(text))
        rows.append(row_after(target, text, 128, more=text[-1:] * room))
    target.chunk = usual
    target.rollback(0)
    moved = max(np.abs(a - b).max() for a, b in combinations(rows, 2))
    return min(abs(row[one[at]] - row[other[at]]) for row in rows) <= 2 * moved
