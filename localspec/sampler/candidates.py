"""Exact selection of the largest logits without sorting or partitioning a whole vocabulary."""

import numpy as np

from localspec.passes import Candidates, Row

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


def likeliest(row: np.ndarray, rivals: int) -> tuple[int, float]:
    """The largest logit's id (the lowest of equal ones), and its share of exp(logit) among the largest.

    On a large vocabulary the others are the largest of as many columns of the fold: nearly always the next
    largest logits, at the cost of one pass over the row.
    """
    columns = len(row) // _STRIPES
    if columns < _STRIPES * rivals:
        token = int(row.argmax())
        return token, _share(row[token], largest(row, rivals)[1])
    folded = row[: _STRIPES * columns].reshape(_STRIPES, columns)
    maxima = folded.max(axis=0)
    if len(row) > _STRIPES * columns:
        maxima = np.append(maxima, row[_STRIPES * columns :].max())
    top = maxima.max()
    best = np.flatnonzero(maxima == top)
    # Ties, the unfolded tail and NaN are rare enough for a second pass.
    alone = len(best) == 1 and best[0] < columns
    token = int(folded[:, best[0]].argmax()) * columns + int(best[0]) if alone else int(row.argmax())
    return token, _share(top, np.partition(maxima, -rivals)[-rivals:])


def _share(top: float, logits: np.ndarray) -> float:
    return float(1.0 / np.exp(logits - top).sum()) if np.isfinite(top) else np.nan


def _cut(ids: np.ndarray, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest of some logits whose ids ascend."""
    if len(ids) > count:
        kept = np.sort((-logits).argsort(kind="stable")[:count])
        ids, logits = ids[kept], logits[kept]
    return ids, logits.astype(np.float64)
