"""The chances that the target accepts copied tokens. They are learned from copies that were used and from others."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import e, isfinite


class Kind(IntEnum):
    """How the place of a copied token was found."""

    FAR = 0  # by three or more equal tokens, anywhere in the text
    NEAR = 1  # near the place that the reply has left
    CHANGED = 2  # the token is part of a change that the reply has made before


# The buckets of equal tokens before the copied token are 0, 1, 2, 3, 4-5, 6-8, 9-16, 17-32, and 33 or more.
MATCHES = (1, 2, 3, 4, 6, 9, 17, 33)
PRIOR = (  # initial chances of acceptance by kind and bucket, fitted to twelve edits
    (0.07, 0.15, 0.36, 0.60, 0.75, 0.87, 0.93, 0.97, 0.985),
    (0.37, 0.51, 0.66, 0.75, 0.82, 0.88, 0.92, 0.95, 0.97),
    (0.18, 0.31, 0.37, 0.46, 0.59, 0.67, 0.73, 0.76, 0.76),
)
PRIOR_COUNT = 20.0  # the initial chances weigh as much as this many judged tokens
DECAY = 0.97  # each judged token multiplies the older counts of its kind and bucket by this factor
# A token's own history in this reply multiplies its odds: numbers, because line ends stay and renamed words do not.
KEPT_POWER, REJECTED_POWER = 0.2, 0.4
BUCKETS = len(MATCHES) + 1


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """Counts of accepted and of rejected tokens by kind and bucket; older tokens count less."""

    kept: tuple[float, ...]
    rejected: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for invalid counts, for example from a damaged file."""
        if not all(isfinite(count) and count >= 0 for count in (*self.kept, *self.rejected)):
            raise ValueError(f"the counts are not all finite and 0 or more: {self}")


class CopyChances:
    """The chance of a copied token by its kind, by the equal tokens before it, and by its history in this reply."""

    def __init__(self, learned: CopyCounts | None = None) -> None:
        cells = BUCKETS * len(Kind)
        fits = learned is not None and len(learned.kept) == len(learned.rejected) == cells
        self._kept = list(learned.kept) if learned and fits else [0.0] * cells
        self._rejected = list(learned.rejected) if learned and fits else [0.0] * cells
        self._odds = [self._odds_of(cell) for cell in range(cells)]
        self.begin()

    def begin(self) -> None:
        """Begin another reply: keep the counts, and forget the history of single tokens."""
        self._history: dict[int, tuple[int, int]] = {}  # by token: how often it was kept and rejected

    def counts(self) -> CopyCounts:
        return CopyCounts(tuple(self._kept), tuple(self._rejected))

    def of(self, kind: Kind, match: int, token: int | None = None) -> float:
        """Return a token's chance if `match` tokens before it are equal; without a token, the chance of any."""
        odds = self._odds[kind * BUCKETS + bisect_right(MATCHES, match)]
        if token is not None:
            kept, rejected = self._history.get(token, (0, 0))
            odds *= ((1 + kept) / e) ** KEPT_POWER / (1 + rejected) ** REJECTED_POWER
        return odds / (1 + odds)

    def learn(self, kind: Kind, match: int, token: int, *, kept: bool) -> None:
        cell = kind * BUCKETS + bisect_right(MATCHES, match)
        self._kept[cell] = DECAY * self._kept[cell] + kept
        self._rejected[cell] = DECAY * self._rejected[cell] + (not kept)
        self._odds[cell] = self._odds_of(cell)
        before = self._history.get(token, (0, 0))
        self._history[token] = before[0] + kept, before[1] + (not kept)

    def _odds_of(self, cell: int) -> float:
        prior = PRIOR[cell // BUCKETS][cell % BUCKETS]
        return (self._kept[cell] + PRIOR_COUNT * prior) / (self._rejected[cell] + PRIOR_COUNT * (1 - prior))
