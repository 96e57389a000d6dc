"""The chances that the target accepts copied tokens, learned from copies, whether they were proposed or not."""

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite


class CopyKind(IntEnum):
    """The way in which the drafter found the place from which it copies a token."""

    FAR = 0  # by three or more equal tokens anywhere in the text
    NEAR = 1  # near the place where the reply left the text
    CHANGED = 2  # the token is part of a change that the reply has made before


# The buckets of equal tokens before the copied token are 0, 1, 2, 3, 4-5, 6-8, 9-16, 17-32, and 33 or more.
MATCHES = (1, 2, 3, 4, 6, 9, 17, 33)
PRIOR = (  # initial chances of acceptance by kind and bucket, fitted to twelve edits
    (0.06, 0.12, 0.31, 0.55, 0.71, 0.84, 0.91, 0.96, 0.98),
    (0.32, 0.45, 0.61, 0.71, 0.79, 0.85, 0.90, 0.94, 0.96),
    (0.15, 0.26, 0.32, 0.41, 0.54, 0.62, 0.68, 0.72, 0.72),
)
PRIOR_COUNT = 20.0  # the initial chances have the weight of this many judged tokens
DECAY = 0.97  # each judged token multiplies the older counts of its kind and bucket by this factor
# The counts of how often the target kept and rejected a token in this reply, to this power, change the token's odds.
# A rejection counts twice. For example, line ends are mostly kept, and renamed words are not.
HISTORY = 0.2
BUCKETS, LONG = len(PRIOR[0]), max(MATCHES)
BUCKET = [bisect_right(MATCHES, match) for match in (*range(LONG), LONG)]  # by the number of equal tokens


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """Counts of accepted and of rejected tokens by kind and bucket; older tokens count less."""

    kept: tuple[float, ...]
    rejected: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for invalid counts, for example from a damaged file."""
        if not all(isfinite(count) and count >= 0 for count in (*self.kept, *self.rejected)):
            raise ValueError(f"each count must be a finite number of at least 0, but the counts are {self}")


class CopyChances:
    """The chance that the target accepts a copied token: by kind, equal tokens before it, and earlier verdicts."""

    def __init__(self, learned: CopyCounts | None = None) -> None:
        cells = BUCKETS * len(CopyKind)
        fits = learned is not None and len(learned.kept) == len(learned.rejected) == cells
        self._kept = list(learned.kept) if learned and fits else [0.0] * cells
        self._rejected = list(learned.rejected) if learned and fits else [0.0] * cells
        self._odds = [self._odds_of(cell) for cell in range(cells)]
        self.begin()

    def begin(self) -> None:
        """Begin another reply: keep the counts, and forget the history of single tokens."""
        self._history: dict[int, tuple[int, int]] = {}  # by token: how often the target kept and rejected it
        self._factors: dict[int, float] = {}  # by token: the factor of its odds

    def counts(self) -> CopyCounts:
        return CopyCounts(tuple(self._kept), tuple(self._rejected))

    def of(self, kind: CopyKind, match: int, token: int | None = None) -> float:
        """Return a token's chance if `match` tokens before it are equal; without `token`, that of an average token."""
        odds = self._odds[kind * BUCKETS + BUCKET[match if match < LONG else LONG]]
        if token is not None:
            odds *= self._factors.get(token, 1.0)
        return odds / (1 + odds)

    def learn(self, kind: CopyKind, match: int, token: int, *, kept: bool) -> None:
        cell = kind * BUCKETS + BUCKET[min(match, LONG)]
        self._kept[cell] = DECAY * self._kept[cell] + kept
        self._rejected[cell] = DECAY * self._rejected[cell] + (not kept)
        self._odds[cell] = self._odds_of(cell)
        before = self._history.get(token, (0, 0))
        times, failures = self._history[token] = before[0] + kept, before[1] + (not kept)
        self._factors[token] = ((1 + times) / (1 + failures) ** 2) ** HISTORY

    def _odds_of(self, cell: int) -> float:
        prior = PRIOR[cell // BUCKETS][cell % BUCKETS]
        return (self._kept[cell] + PRIOR_COUNT * prior) / (self._rejected[cell] + PRIOR_COUNT * (1 - prior))
