"""Drafts copied from the prompt and the conversation, without a model.

The method is SuffixDecoding's (Oliaro et al. 2024): among the earlier places with the longest match of the newest
tokens, follow the most frequent continuation. The chances of acceptance are learned from earlier drafts.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import isfinite

import numpy as np

from localspec.algorithm.protocols import Drafter, Proposal, Rule, Stopping
from localspec.events import Source
from localspec.sampler.passes import common_prefix_length

# The buckets of match lengths are 3, 4-5, 6-8, 9-16, 17-32, and 33 or more.
MATCHES = (4, 6, 9, 17, 33)
PRIOR = (0.4, 0.55, 0.7, 0.8, 0.9, 0.93)  # initial chances of acceptance, by bucket of match lengths
PRIOR_COUNT = 4.0  # the initial chances weigh as much as this many judged tokens
DECAY = 0.998  # every emitted token multiplies all counts by this factor


@dataclass(frozen=True, slots=True)
class LookupCounts:
    """Counts of accepted and of rejected draft tokens, indexed by `_cell`; older tokens count less."""

    kept: tuple[float, ...]
    rejected: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for invalid counts, for example from a damaged file."""
        if not all(isfinite(count) and count >= 0 for count in (*self.kept, *self.rejected)):
            raise ValueError(f"the counts are not all finite and 0 or more: {self}")


class LookupAcceptance:
    """The chance that a copied token is accepted, by match length and by the share of matching places it follows."""

    def __init__(self, learned: LookupCounts | None = None, prior: Sequence[float] = PRIOR) -> None:
        """`prior`: the initial chances of acceptance, by bucket of match lengths."""
        self._prior = prior
        cells = 2 * len(prior)
        fits = learned is not None and len(learned.kept) == len(learned.rejected) == cells
        self._kept = list(learned.kept) if learned and fits else [0.0] * cells
        self._rejected = list(learned.rejected) if learned and fits else [0.0] * cells

    def counts(self) -> LookupCounts:
        return LookupCounts(tuple(self._kept), tuple(self._rejected))

    def rate(self, match: int, share: float) -> float:
        """Return a token's chance of acceptance; `share`: the share of matching places that continue with it."""
        i = _cell(match, share)
        prior = PRIOR_COUNT * self._prior[bisect_right(MATCHES, match)] * share
        return (self._kept[i] + prior) / (self._kept[i] + self._rejected[i] + PRIOR_COUNT)

    def learn(self, match: int, shares: Sequence[float], agreed: int, emitted: int) -> None:
        """Count judged draft tokens; the first `agreed` were accepted. `shares`: each token's share, as in `rate`."""
        fade = DECAY**emitted
        self._kept, self._rejected = (
            [count * fade for count in part] for part in (self._kept, self._rejected)
        )
        for depth, share in enumerate(shares):
            counts = self._kept if depth < agreed else self._rejected
            counts[_cell(match, share)] += 1.0


def _cell(match: int, share: float) -> int:
    """Return the index of the counts for a match length; if all matching places agree (share 1), the next index."""
    return 2 * bisect_right(MATCHES, match) + (share == 1.0)


GRAM = 3  # a place matches if at least this many tokens before it equal the newest tokens
# Bits of a token in a key. Three tokens fit 64 bits, if the vocabulary has at most 2 million tokens.
BITS = 21


def keys_of(tokens: np.ndarray) -> np.ndarray:
    """Return the key of every three consecutive tokens, int64 [n - 2]."""
    wide = tokens.astype(np.int64)
    return wide[:-2] << 2 * BITS | wide[1:-1] << BITS | wide[2:]


class GrowingIndex:
    """A growing text with an index of every three consecutive tokens; each token is added in O(1)."""

    def __init__(self) -> None:
        self.tokens = np.zeros(0, dtype=np.int32)  # a buffer whose first `length` tokens are the text
        self.length = 0
        # By position: the last earlier position where the same three tokens end; None if there is none.
        self._before: list[int | None] = []
        self._latest: dict[int, int] = {}  # by key: the last position where the key's tokens end

    def extend(self, tokens: Sequence[int]) -> None:
        begin, end = self.length, self.length + len(tokens)
        if end > len(self.tokens):
            larger = np.zeros(max(end, 2 * len(self.tokens)), dtype=np.int32)
            larger[:begin] = self.tokens[:begin]
            self.tokens = larger
        self.tokens[begin:end] = tokens
        self.length = end
        self._before += [None] * (min(GRAM - 1, end) - len(self._before))
        first = len(self._before)
        if first < end:
            keys = keys_of(self.tokens[first - GRAM + 1 : end])
            for position, key in enumerate(keys.tolist(), start=first):
                self._before.append(self._latest.get(key))
                self._latest[key] = position

    def positions(self, key: int, most: int) -> list[int]:
        """Return at most `most` positions where the three tokens of this key end, the newest first."""
        found: list[int] = []
        place = self._latest.get(key)
        while place is not None and len(found) < most:
            found.append(place)
            place = self._before[place]
        return found


LONGEST = 64  # a match has at most this many tokens, and at most this many matching places are compared
# A proposal ends where its chance to be accepted in full falls below this. Longer proposals cost 0.7 ms in vain.
LEAST_CHANCE = 0.1


@dataclass(frozen=True, slots=True)
class Continuation:
    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()  # each token's chance of acceptance, if all tokens before it are accepted
    shares: tuple[float, ...] = ()  # for each token, the share of the matching places that continue with it
    match: int = 0  # match length: number of tokens before the continuation that equal the newest ones


class LookupDrafter(Drafter):
    """A drafter that proposes the most frequent earlier continuation of the newest tokens."""

    source = Source.LOOKUP

    def __init__(self, trust: LookupAcceptance | None = None) -> None:
        self.trust = trust or LookupAcceptance()
        self._index = GrowingIndex()
        self._found = Continuation()
        self._length: int | None = None  # length of the text at the last proposal; None before the first one

    def begin(self) -> None:
        self._found, self._length = Continuation(), None  # the next prompt must not judge the last proposal

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule | None = None, stopping: Stopping | None = None
    ) -> Proposal:
        found = self.find(tokens, limit)
        return Proposal.copied(found.tokens, found.chances, self.source)

    def find(self, tokens: Sequence[int], limit: int) -> Continuation:
        """Return the most frequent continuation of `tokens`, at most `limit` tokens."""
        emitted = [] if self._length is None else tokens[self._length :]
        before, self._found = self._found, Continuation()
        agreed = common_prefix_length(before.tokens, 0, emitted)
        # The new tokens judge the last proposal, even if another drafter proposed these tokens.
        self.trust.learn(before.match, before.shares[: min(agreed + 1, len(emitted))], agreed, len(emitted))
        length = self._index.length
        begin = max(length - LONGEST, 0)
        if len(tokens) < length or (self._index.tokens[begin:length] != tokens[begin:length]).any():
            self._index = GrowingIndex()  # the text is not a continuation of the last one
        self._index.extend(tokens[self._index.length :])
        if len(tokens) >= GRAM and limit > 0:
            self._found = self._best(np.array(tokens[-LONGEST:], dtype=np.int32), limit)
        self._length = len(tokens)
        return self._found

    def _best(self, tail: np.ndarray, limit: int) -> Continuation:
        index = self._index
        key = int(keys_of(tail[-GRAM:])[0])
        places = np.array([p for p in index.positions(key, LONGEST + 1) if p < index.length - 1][:LONGEST])
        if not len(places):
            return Continuation()
        matches = match_lengths(index.tokens, places, tail)
        match = int(matches.max())
        at = places[matches == match][:, None] + np.arange(1, limit + 1)
        rows = np.where(at < index.length, index.tokens[np.minimum(at, index.length - 1)], -1)
        rate, survival = cache(partial(self.trust.rate, match)), 1.0
        found = list[tuple[int, float, float]]()
        for token, share in followed(rows):
            chance = rate(share)
            survival *= chance
            if survival < LEAST_CHANCE:
                break
            found.append((token, chance, share))
        tokens, chances, shares = zip(*found, strict=True) if found else ((), (), ())
        return Continuation(tokens, chances, shares, match)


def followed(rows: np.ndarray) -> Iterator[tuple[int, float]]:
    """Yield each column's most frequent token and its share, among the rows that begin with all tokens yielded so far.

    `rows`: tokens, int [rows, depth]; -1 after the end of the text. Of equally frequent tokens, yield the uppermost.
    """
    while rows.size:
        # The lowest row is the longest. Usually most rows agree with it, so its tokens are counted in one step.
        agree = np.logical_and.accumulate(rows == rows[-1], axis=1)
        before = np.insert(agree[:, :-1], 0, True, axis=1)
        times, rivals = agree.sum(axis=0).tolist(), (before & (rows >= 0)).sum(axis=0).tolist()
        for depth, token in enumerate(rows[-1].tolist()):
            if token < 0 or 2 * times[depth] <= rivals[depth]:
                break
            yield token, times[depth] / rivals[depth]
        else:
            return
        left = rows[before[:, depth] & (rows[:, depth] >= 0), depth:]
        if not len(left):
            return
        ((token, count),) = Counter(left[:, 0].tolist()).most_common(1)
        yield token, count / len(left)
        rows = left[left[:, 0] == token, 1:]


def match_lengths(tokens: np.ndarray, positions: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Return for each position how many tokens that end there equal the last tokens of `tail`, int [positions]."""
    back = np.arange(len(tail))
    at = positions[:, None] - back
    same = (tokens[np.maximum(at, 0)] == tail[::-1]) & (at >= 0)
    return np.where(same.all(axis=1), len(tail), same.argmin(axis=1))
