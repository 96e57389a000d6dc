"""Drafts copied from the prompt and the conversation: no model.

The statistic is SuffixDecoding's (Oliaro et al. 2024): among the places where the newest tokens occurred
before, follow the most frequent continuation. How far to trust it is learned from earlier guesses.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from localspec.algorithm.protocols import Drafter, Proposal, Rule, Stopping
from localspec.events import Source
from localspec.sampler.passes import standing

MATCHES = (4, 6, 9, 17, 33)  # lengths at which a new bucket begins: 3, 4-5, 6-8, 9-16, 17-32, more
DEPTHS = (1, 3, 7)  # 0-based depths at which a new bucket begins: first, 2nd-3rd, 4th-7th, more
PRIOR = (0.4, 0.55, 0.7, 0.8, 0.9, 0.93)  # by match length, before anything was seen
PRIOR_COUNT = 4.0
AGREED = 0.99  # share of places from which on they count as unanimous
DECAY = 0.998  # per emitted token
CELLS = len(PRIOR) * (len(DEPTHS) + 1) * 2


@dataclass(frozen=True, slots=True)
class LookupCounts:
    """Discounted counts by cell, in a form that can be stored."""

    kept: tuple[float, ...]
    rejected: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for invalid counts, for example from a damaged file."""
        if not all(isfinite(count) and count >= 0 for count in (*self.kept, *self.rejected)):
            raise ValueError(f"counts are finite and not negative: {self}")


class LookupAcceptance:
    """P(the target keeps a copied token | it is reached), by match length, depth and agreement."""

    def __init__(self, prior: LookupCounts | None = None, beliefs: Sequence[float] = PRIOR) -> None:
        """`beliefs`: the chance by match length before anything was seen."""
        self._beliefs = beliefs
        fits = prior is not None and len(prior.kept) == len(prior.rejected) == CELLS
        self._kept = list(prior.kept) if prior and fits else [0.0] * CELLS
        self._rejected = list(prior.rejected) if prior and fits else [0.0] * CELLS
        self._weight = 1.0  # of a new count; grows instead of shrinking all the old ones

    def counts(self) -> LookupCounts:
        return LookupCounts(
            tuple(k / self._weight for k in self._kept), tuple(r / self._weight for r in self._rejected)
        )

    def rate(self, match: int, depth: int, share: float) -> float:
        """The chance of the token at `depth` (from 0), on which `share` of the places agree."""
        i = cell(match, depth, share)
        prior = PRIOR_COUNT * self._weight
        believed = self._beliefs[bisect_right(MATCHES, match)] * share
        return (self._kept[i] + prior * believed) / (self._kept[i] + self._rejected[i] + prior)

    def learn(self, match: int, shares: Sequence[float], agreed: int, emitted: int) -> None:
        """`shares` of the guessed tokens that were judged; the first `agreed` of them came true."""
        self._weight /= DECAY**emitted
        if self._weight > 1e6:
            self._kept, self._rejected = (
                [c / self._weight for c in part] for part in (self._kept, self._rejected)
            )
            self._weight = 1.0
        for depth, share in enumerate(shares):
            counts = self._kept if depth < agreed else self._rejected
            counts[cell(match, depth, share)] += self._weight


def cell(match: int, depth: int, share: float) -> int:
    bucket = bisect_right(MATCHES, match) * (len(DEPTHS) + 1) + bisect_right(DEPTHS, depth)
    return 2 * bucket + (share >= AGREED)


GRAM = 3  # tokens that must match for a place to be considered
BITS = 21  # a token id in a key: vocabularies have up to 2 million entries
NOWHERE = -1
START = 1024


def keys_of(tokens: np.ndarray) -> np.ndarray:
    """The keys of every three tokens in a row, int64 [n - 2]."""
    wide = tokens.astype(np.int64)
    return wide[:-2] << 2 * BITS | wide[1:-1] << BITS | wide[2:]


class GrowingIndex:
    """A text that grows and is cut, with the places of each three tokens; O(1) for every token."""

    def __init__(self) -> None:
        self.tokens = np.zeros(START, dtype=np.int32)  # the first `length` are the text
        self.length = 0
        # For each position, the place before it that ends in the same three tokens.
        self._before: list[int] = []
        self._latest: dict[int, int] = {}  # by key

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        begin, end = self.length, self.length + len(tokens)
        self._reserve(end)
        self.tokens[begin:end] = tokens
        self.length = end
        first = min(GRAM - 1, end)
        self._before += [NOWHERE] * (first - len(self._before))
        first = len(self._before)
        if first < end:
            keys = keys_of(self.tokens[first - GRAM + 1 : end])
            for position, key in enumerate(keys.tolist(), start=first):
                self._before.append(self._latest.get(key, NOWHERE))
                self._latest[key] = position

    def cut(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        if length >= self.length:
            return
        begin = max(length, GRAM - 1)
        if begin < self.length:
            keys = keys_of(self.tokens[begin - GRAM + 1 : self.length]).tolist()
            for position in range(self.length - 1, begin - 1, -1):
                before = self._before[position]
                if before == NOWHERE:
                    del self._latest[keys[position - begin]]
                else:
                    self._latest[keys[position - begin]] = before
        del self._before[length:]
        self.length = length

    def places(self, key: int, most: int) -> list[int]:
        """The latest positions whose token ends these three; newest first."""
        found: list[int] = []
        place = self._latest.get(key, NOWHERE)
        while place != NOWHERE and len(found) < most:
            found.append(place)
            place = self._before[place]
        return found

    def _reserve(self, length: int) -> None:
        if length > len(self.tokens):
            larger = np.zeros(max(length, 2 * len(self.tokens)), dtype=np.int32)
            larger[: self.length] = self.tokens[: self.length]
            self.tokens = larger


PLACES = 64  # latest occurrences that are looked at: the cost of a cycle does not grow with the text
LONGEST_MATCH = 64  # tokens
LENGTHS = 4  # different match lengths that are tried
LEAST_CHANCE = 0.1  # a less likely continuation is not proposed
SAME_TAIL = 64  # tokens compared to see that a text has only grown; a wrong guess costs speed and no more


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may follow, the chance of each once it is reached, and the length of the match."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()  # of the places, those that agree on the token
    match: int = 0

    @property
    def expected(self) -> float:
        """Tokens that are kept on average."""
        return float(np.cumprod(self.chances).sum()) if self.chances else 0.0


class LookupDrafter(Drafter):
    """Proposes the earlier continuation of the newest tokens."""

    source = Source.LOOKUP

    def __init__(self, trust: LookupAcceptance | None = None) -> None:
        self.trust = trust or LookupAcceptance()
        self._index = GrowingIndex()
        self._guess = Guess()
        self._guessed_at = 0  # length of the text that the guess follows

    def begin(self) -> None:
        self._guess = Guess()

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule | None = None, stopping: Stopping | None = None
    ) -> Proposal:
        """The whole of the most promising continuation; its confidences are the chances of its tokens."""
        guess = self.find(tokens, limit)
        return Proposal.copied(guess.tokens, guess.chances, self.source)

    def find(self, tokens: Sequence[int], limit: int) -> Guess:
        """The most promising continuation of `tokens`, at most `limit` tokens."""
        emitted = tokens[self._guessed_at :]
        guess, self._guess = self._guess, Guess()
        agreed = standing(guess.tokens, 0, emitted)
        # The text continues after the last guess, whoever drafted it.
        self.trust.learn(guess.match, guess.shares[: min(agreed + 1, len(emitted))], agreed, len(emitted))
        self._settle(tokens)
        if len(tokens) >= GRAM and limit > 0:
            tail = np.array(tokens[-LONGEST_MATCH:], dtype=np.int32)
            self._guess = self._best(tail, limit)
        self._guessed_at = len(tokens)
        return self._guess

    def _settle(self, tokens: Sequence[int]) -> None:
        """The text is now `tokens`: index the new ones, forget the others."""
        length = self._index.length
        begin = max(length - SAME_TAIL, 0)
        if len(tokens) < length or (self._index.tokens[begin:length] != tokens[begin:length]).any():
            known = self._index.tokens[:length]
            new = np.array(tokens[:length], dtype=np.int32)
            differs = np.flatnonzero(known[: len(new)] != new)
            self._index.cut(int(differs[0]) if len(differs) else len(new))
        self._index.extend(tokens[self._index.length :])

    def _best(self, tail: np.ndarray, limit: int) -> Guess:
        index = self._index
        key = int(keys_of(tail[-GRAM:])[0])
        places = np.array([p for p in index.places(key, PLACES + 1) if p < index.length - 1][:PLACES])
        if not len(places):
            return Guess()
        matches = match_lengths(index.tokens, places, tail)
        text = index.tokens[: index.length]
        following = [tuple(text[place + 1 : place + 1 + limit].tolist()) for place in places.tolist()]
        best = Guess()
        for match in sorted(set(matches.tolist()), reverse=True)[:LENGTHS]:
            # A text that repeats itself has few different continuations, however many places.
            rows = Counter(row for row, length in zip(following, matches, strict=True) if length >= match)
            guess = self._follow(rows, match, limit)
            if guess.expected > best.expected:
                best = guess
        return best

    def _follow(self, rows: Mapping[tuple[int, ...], int], match: int, limit: int) -> Guess:
        """The most frequent continuation, token by token, while it is likely enough; `rows`: how often each follows."""
        tokens, shares, chances, survival = list[int](), list[float](), list[float](), 1.0
        for depth in range(limit):
            rows = {row: times for row, times in rows.items() if depth < len(row)}
            if not rows:
                break
            counts = dict[int, int]()
            for row, times in rows.items():
                counts[row[depth]] = counts.get(row[depth], 0) + times
            token = max(counts, key=counts.__getitem__)
            share = counts[token] / sum(counts.values())
            chance = self.trust.rate(match, depth, share)
            survival *= chance
            if survival < LEAST_CHANCE:
                break
            tokens.append(token)
            shares.append(share)
            chances.append(chance)
            if len(counts) > 1:
                rows = {row: times for row, times in rows.items() if row[depth] == token}
        return Guess(tuple(tokens), tuple(chances), tuple(shares), match)


def match_lengths(tokens: np.ndarray, places: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """How many tokens before and at each place equal the end of `tail`, int [places]."""
    back = np.arange(len(tail))
    at = places[:, None] - back
    same = (tokens[np.maximum(at, 0)] == tail[::-1]) & (at >= 0)
    return np.where(same.all(axis=1), len(tail), same.argmin(axis=1))
