"""Exact selection of the largest logits without sorting or partitioning a whole vocabulary."""

import numpy as np

from localspec.speculation.protocols import Candidates, Row

_STRIPES = 64


def largest(row: Row, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest logits as (ids ascending, float64 logits); of equal ones the lowest ids.

    A full row is folded into 64 stripes. The k-th largest column maximum is at most the k-th largest logit,
    so only columns whose maximum reaches it can hold one of the k largest.
    """
    if isinstance(row, Candidates):
        order = row.ids.argsort()
        return _cut(row.ids[order], row.logits[order], count)
    columns = len(row) // _STRIPES
    if columns <= count:
        return _cut(np.arange(len(row)), row, count)
    folded = row[: _STRIPES * columns].reshape(_STRIPES, columns)
    rest = row[_STRIPES * columns :]
    maxima = folded.max(axis=0)
    least = np.partition(maxima, -count)[-count]
    chosen = np.flatnonzero(maxima >= least)
    stripe, column = np.nonzero(folded[:, chosen] >= least)
    ids = np.concatenate(
        (stripe * columns + chosen[column], _STRIPES * columns + np.flatnonzero(rest >= least))
    )
    return _cut(ids, row[ids], count)


def _cut(ids: np.ndarray, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest of some logits whose ids ascend."""
    if len(ids) > count:
        kept = np.sort((-logits).argsort(kind="stable")[:count])
        ids, logits = ids[kept], logits[kept]
    return ids, logits.astype(np.float64)
