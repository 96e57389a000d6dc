"""Rows of real contexts, to compare with."""

import numpy as np

from localspec.sampler.passes import Candidates

NEAR = 0.1  # far above what batch widths change in these logits, far below what a wrong token does


def row_after(context, tokens) -> np.ndarray:
    """The row after the tokens, on an empty cache."""
    context.rollback(0)
    return logits_of(context.decode(tokens, 1).rows[0])


def logits_of(row) -> np.ndarray:
    """A copy of a row's logits: of all tokens, or of the likeliest where a GPU chose them."""
    return np.array(row.logits if isinstance(row, Candidates) else row)
