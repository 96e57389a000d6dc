"""Rows of real contexts, to compare with."""

import numpy as np

NEAR = 0.1  # far above what batch widths change in these logits, far below what a wrong token does


def row_after(context, tokens) -> np.ndarray:
    """The row after the tokens, on an empty cache."""
    context.rollback(0)
    return np.array(context.decode(tokens, 1).rows[0])
