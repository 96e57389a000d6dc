"""Drafts copied from the prompt, the conversation and, if the user wants it, earlier replies: no model.

The statistic is SuffixDecoding's (Oliaro et al. 2024): among the places where the newest tokens occurred
before, follow the most frequent continuation. How far to trust it is learned from earlier guesses.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.algorithm.protocols import Proposal, Reading, Rule, Stopping
from localspec.drafters.lookup_index import GRAM, FixedIndex, GrowingIndex, key_of
from localspec.drafters.lookup_trust import Trust
from localspec.events import Source
from localspec.passes import Pass

PLACES = 64  # latest occurrences that are looked at: the cost of a cycle does not grow with the text
LONGEST_MATCH = 64  # tokens
LENGTHS = 4  # different match lengths that are tried
LEAST_CHANCE = 0.1  # a continuation that is less likely than this is not worth proposing
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


class LookupDrafter:
    """Proposes what followed the newest tokens before."""

    source = Source.LOOKUP
    wants = None
    failure = None
    busy_seconds = 0.0  # no model

    def __init__(self, trust: Trust | None = None, earlier: FixedIndex | None = None) -> None:
        self.trust = trust or Trust()
        self._earlier = earlier
        self._index = GrowingIndex()
        self._guess = Guess()
        self._guessed_at = 0  # length of the text that the guess follows

    def steps(self, depth: int) -> int:
        return 0

    def rehearse(self, batches: Sequence[Sequence[int]]) -> None:
        """There is no model."""

    def begin(self) -> None:
        self._guess = Guess()

    def follow(self, passed: Pass, kept: int) -> None:
        """The text is indexed when it is searched."""

    def reading(self, tokens: Sequence[int]) -> Reading:
        return Reading()

    def read(self, tokens: Sequence[int], most: int) -> int:
        return 0

    def restart(self, tokens: Sequence[int], window: int) -> None:
        """The whole text is searched."""

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule | None = None, stopping: Stopping | None = None
    ) -> Proposal:
        """The whole of the most promising continuation; its confidences are the chances of its tokens."""
        guess = self.find(tokens, limit)
        return Proposal.copied(guess.tokens, guess.chances, self.source)

    def find(self, tokens: Sequence[int], limit: int) -> Guess:
        """The most promising continuation of `tokens`, at most `limit` tokens."""
        self._learn(tokens[self._guessed_at :])
        self._settle(tokens)
        if len(tokens) >= GRAM and limit > 0:
            tail = np.array(tokens[-LONGEST_MATCH:], dtype=np.int32)
            self._guess = self._best_in(self._index, tail, limit)
            if self._earlier is not None:
                other = self._best_in(self._earlier, tail, limit)
                self._guess = max(self._guess, other, key=lambda guess: guess.expected)
        self._guessed_at = len(tokens)
        return self._guess

    def _learn(self, emitted: Sequence[int]) -> None:
        """What the text went on with after the last guess, whoever drafted it."""
        guess, self._guess = self._guess, Guess()
        agreed = agreeing(guess.tokens, emitted)
        judged = min(agreed + 1, len(guess.tokens), len(emitted))
        self.trust.learn(guess.match, guess.shares[:judged], agreed, len(emitted))

    def _settle(self, tokens: Sequence[int]) -> None:
        """The text is now `tokens`: index what is new, forget what is gone."""
        length = self._index.length
        if not (len(tokens) >= length and self._same_tail(tokens, length)):
            known = self._index.tokens[:length]
            new = np.array(tokens[:length], dtype=np.int32)
            differs = np.flatnonzero(known[: len(new)] != new)
            self._index.cut(int(differs[0]) if len(differs) else len(new))
        self._index.extend(tokens[self._index.length :])

    def _same_tail(self, tokens: Sequence[int], length: int) -> bool:
        begin = max(length - SAME_TAIL, 0)
        return bool((self._index.tokens[begin:length] == tokens[begin:length]).all())

    def _best_in(self, index: GrowingIndex | FixedIndex, tail: np.ndarray, limit: int) -> Guess:
        key = key_of(*tail[-GRAM:].tolist())
        places = np.array([p for p in index.places(key, PLACES + 1) if p < index.length - 1][:PLACES])
        if not len(places):
            return Guess()
        matches = match_lengths(index.tokens, places, tail)
        following = continuations(index.tokens[: index.length], places, limit)
        best = Guess()
        for match in sorted(set(matches.tolist()), reverse=True)[:LENGTHS]:
            rows = [row for row, length in zip(following, matches, strict=True) if length >= match]
            guess = self._follow(rows, match, limit)
            if guess.expected > best.expected:
                best = guess
        return best

    def _follow(self, rows: list[list[int]], match: int, limit: int) -> Guess:
        """The most frequent continuation, token by token, while it is likely enough to be kept."""
        tokens: list[int] = []
        shares: list[float] = []
        chances: list[float] = []
        survival = 1.0
        for depth in range(limit):
            counts = Counter(row[depth] for row in rows if depth < len(row))
            if not counts:
                break
            token, count = counts.most_common(1)[0]
            share = count / counts.total()
            chance = self.trust.rate(match, depth, share)
            survival *= chance
            if token < 0 or survival < LEAST_CHANCE:
                break
            tokens.append(token)
            shares.append(share)
            chances.append(chance)
            rows = [row for row in rows if depth < len(row) and row[depth] == token]
        return Guess(tuple(tokens), tuple(chances), tuple(shares), match)


def agreeing(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens are the same from the first on."""
    return next(
        (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )


def match_lengths(tokens: np.ndarray, places: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """How many tokens before and at each place equal the end of `tail`, int [places]."""
    back = np.arange(len(tail))
    at = places[:, None] - back
    same = (tokens[np.maximum(at, 0)] == tail[::-1]) & (at >= 0)
    return np.where(same.all(axis=1), len(tail), same.argmin(axis=1))


def continuations(tokens: np.ndarray, places: np.ndarray, limit: int) -> list[list[int]]:
    """What follows each place, at most `limit` tokens, fewer at the end of the text."""
    return [tokens[place + 1 : place + 1 + limit].tolist() for place in places.tolist()]
