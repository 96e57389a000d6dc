"""Exact selection of the largest logits without sorting or partitioning a whole vocabulary."""

import numpy as np

from localspec.speculation.protocols import Candidates, Row

_STRIPES = 64  # at most
_SPARE = 4  # columns for each logit wanted, so that few of them are looked at more closely


def largest(row: Row, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest logits as (ids ascending, float64 logits); of equal ones the lowest ids.

    A full row is folded into stripes. The k-th largest column maximum is at most the k-th largest logit,
    so only columns whose maximum reaches it can hold one of the k largest.
    """
    if isinstance(row, Candidates):
        order = row.ids.argsort()
        return _cut(row.ids[order], row.logits[order], count)
    stripes = min(_STRIPES, len(row) // (_SPARE * count))
    if stripes < 2:
        return _cut(np.arange(len(row)), row, count)
    columns = len(row) // stripes
    folded = row[: stripes * columns].reshape(stripes, columns)
    rest = row[stripes * columns :]
    maxima = folded.max(axis=0)
    least = np.partition(maxima, -count)[-count]
    chosen = np.flatnonzero(maxima >= least)
    stripe, column = np.nonzero(folded[:, chosen] >= least)
    ids = np.concatenate(
        (stripe * columns + chosen[column], stripes * columns + np.flatnonzero(rest >= least))
    )
    return _cut(ids, row[ids], count)


def _cut(ids: np.ndarray, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest of some logits whose ids ascend."""
    if len(ids) > count:
        kept = np.sort((-logits).argsort(kind="stable")[:count])
        ids, logits = ids[kept], logits[kept]
    return ids, logits.astype(np.float64)
