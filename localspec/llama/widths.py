"""How much logits depend on the batch width: kernels differ, so near-ties can flip."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from localspec.sampler.passes import Pass

WIDTHS = (1, 2, 5, 9)


class _Decoder(Protocol):
    """The part of the Decoder used here."""

    def decode(self, tokens: Sequence[int], rows: int) -> Pass: ...

    def rollback(self, keep: int) -> None: ...


def width_gap(decoder: _Decoder, tokens: Sequence[int]) -> float:
    """D: the largest logit difference between batch widths 1, 2, 5 and 9 on the same prefixes of `tokens`.

    Decodes the tokens from an empty cache once for each width and leaves the cache empty; needs 9 rows.
    """
    reference = _rows(decoder, tokens, WIDTHS[0])
    return max(float(np.abs(_rows(decoder, tokens, width) - reference).max()) for width in WIDTHS[1:])


def _rows(decoder: _Decoder, tokens: Sequence[int], width: int) -> np.ndarray:
    """The row after every token, float32 [tokens, vocab], decoded `width` tokens at a time."""
    decoder.rollback(0)
    rows: list[np.ndarray] = []
    for start in range(0, len(tokens), width):
        batch = tokens[start : start + width]
        rows.extend(np.array(row) for row in decoder.decode(batch, len(batch)).rows)
    decoder.rollback(0)
    return np.stack(rows)
