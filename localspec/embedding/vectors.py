"""Arithmetic on embeddings, as llama.cpp's server does it, and which texts share a pass."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from localspec.errors import BadSetting

EUCLIDEAN = 2  # the usual norm; -1: none, 0: the largest number is 32,760, 1: taxicab, p > 2: p-norm


def normalised(rows: np.ndarray, norm: int = EUCLIDEAN) -> np.ndarray:
    """Return rows of length 1 in this norm; a row of zeros stays as it is."""
    wide = np.abs(rows.astype(np.float64))
    if norm < 0:
        return rows
    lengths = wide.max(axis=-1) / 32760 if norm == 0 else (wide**norm).sum(axis=-1) ** (1 / norm)
    factors = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    scaled: np.ndarray = rows * factors[..., None].astype(np.float32)
    return scaled


def shortened(rows: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Return the first numbers of each row. Raises BadSetting."""
    width = rows.shape[-1]
    if dimensions is not None and not 0 < dimensions <= width:
        raise BadSetting(f"dimensions cannot be {dimensions}", hint=f"the model has {width}")
    return rows[..., :dimensions]


def fitting(lengths: Sequence[int], budget: int) -> int:
    """Return how many of the first texts share a pass of `budget` tokens; the first one has a pass in any case."""
    return max(sum(total <= budget for total in accumulate(lengths)), 1)
