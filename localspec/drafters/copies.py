"""Drafts copied from the caller's prediction, the conversation and the reply itself, without a model.

The drafter follows the reply, token by token, through the text that the reply copies. If the reply leaves this text,
the drafter expects it to return close by: as many tokens later as the reply has written meanwhile, or after a token
that equals its newest one. Farther away, three tokens must be equal (prompt lookup; SuffixDecoding, Oliaro et al.
2024). If the reply replaces some tokens by others, the drafter proposes this change where the same tokens come again.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from math import isfinite
from typing import NamedTuple

from localspec.algorithm.protocols import Drafter, Proposal, Rule, Stopping
from localspec.events import Source

GRAM = 3  # number of equal tokens for a copy far from the place where the reply left the text
BITS = 21  # bits of a token in a key; three tokens fit 64 bits if the vocabulary has at most 2 million tokens
BREAK = -1  # separates two texts; no copy continues across this mark
STEPS = (32, 16, 8, 4, 2, 1)  # numbers of tokens that `match` compares at once; a match has at most their sum
SEEN = sum(STEPS)


class IndexedText:
    """A growing text with an index of every three consecutive tokens; each token is added in O(1)."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        # By position: the last earlier position where the same three tokens end, or -1.
        self._before: list[int] = []
        self._latest: dict[int, int] = {}  # by key: the last position where the key's tokens end
        self._key = BREAK  # key of the last three tokens; before the first token of a text comes BREAK

    def extend(self, tokens: Sequence[int]) -> None:
        key, latest, before = self._key, self._latest, self._before
        part, whole = (1 << BITS) - 1, (1 << GRAM * BITS) - 1
        for position, token in enumerate(tokens, start=len(self.tokens)):
            key = (key << BITS | token & part) & whole
            before.append(latest.get(key, -1))
            latest[key] = position
        self.tokens += tokens
        self._key = key

    def repeated(self, most: int) -> Iterator[int]:
        """Yield at most `most` earlier positions that follow the text's last three tokens, the newest first."""
        place = self._before[-1] if len(self.tokens) >= GRAM else -1
        while place >= 0 and most:
            yield place + 1
            place, most = self._before[place], most - 1

    def match(self, end: int) -> int:
        """Return how many tokens before the position `end` equal the last tokens of the text, at most SEEN."""
        tokens, newest, first = self.tokens, len(self.tokens), end
        for step in STEPS:
            if first >= step and tokens[first - step : first] == tokens[newest - step : newest]:
                first, newest = first - step, newest - step
        return end - first


class CopyKind(IntEnum):
    """The way in which the drafter found the place of a copied token."""

    FAR = 0  # found by three or more equal tokens anywhere in the text
    NEAR = 1  # found near the place where the reply left the text
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
        self._factors: dict[int, float] = {}  # by token: the factor for the odds of its acceptance

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


NEARBY = 16  # within this many tokens of the expected place, one equal token is enough to continue the copy
MISPLACED = 0.93  # factor of a place's chance for each token between it and the expected place
# Each token since the reply left the text multiplies the chance of the expected place by this factor. A far place gets
# the factor once if its match has only tokens since then, because three tokens often repeat by chance.
DOUBT = 0.8
EXPECTED = 2  # a match at the expected place, or right after an insertion, counts as this much longer
LONGEST = 6  # a change is remembered if it replaces at most this many tokens by at most this many
LEAST_CHANCE = 0.1  # a proposal ends where its chance to be accepted in full falls below this


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """A place in the indexed text, from which the next token may be copied."""

    at: int  # position of the next token
    equal: int = 0  # number of equal tokens before this place
    kind: CopyKind = CopyKind.NEAR
    credit: int = 0  # number of equal tokens that the place's position is worth
    written: int = 0  # within a change: number of its tokens that the reply has written

    @property
    def match(self) -> int:
        return self.equal + self.credit


class CopyStep(NamedTuple):
    """A token that may come next, and the place after it."""

    token: int
    at: int
    written: int = 0
    source: tuple[int, ...] | None = None  # the tokens that a change replaces; None for a copied token


class CopyDrafter(Drafter):
    """A drafter that copies text, and finds its place again after a change."""

    source = Source.LOOKUP

    def __init__(self, chances: CopyChances | None = None) -> None:
        self.chances = chances or CopyChances()
        self._empty()
        self.begin()

    def begin(self) -> None:
        self.chances.begin()
        self._length: int | None = None  # length of the text at the last proposal; None before the first one
        self._others: list[tuple[int, ...]] = []  # texts to copy from in this reply, besides the conversation
        self._prediction: tuple[int, ...] = ()
        self._predicted = range(0)  # positions of the prediction in the indexed text
        # By first token of a replaced sequence: each such sequence, and the tokens that the reply has put in its place.
        self._changes: dict[int, dict[tuple[int, ...], tuple[int, ...]]] = {}
        self._wrong: set[tuple[int, ...]] = set()  # sequences with a change that the reply did not repeat
        self._leave()

    def add(self, texts: Sequence[Sequence[int]], prediction: Sequence[int] = ()) -> None:
        """Add texts to copy from in this reply. `prediction`: the caller's guess of the whole reply."""
        self._prediction = tuple(prediction)
        self._others = [*map(tuple, texts), *([self._prediction] if prediction else [])]

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule | None = None, stopping: Stopping | None = None
    ) -> Proposal:
        """Return the next tokens of the text that the reply copies; confidences are chances of acceptance."""
        self._sync(tokens)
        is_sure = self._place and (self._place.equal >= NEARBY or self._place.written)
        if not is_sure and self._chosen != len(tokens):
            self._choose(self._place)
        if (place := self._place) is None:
            return Proposal()
        found, chances, survival, chance_of = list[int](), list[float](), 1.0, self.chances.of
        path, kind = islice(self._path(), max(limit, 0)), place.kind
        for match, (token, _, _, changed) in enumerate(path, start=place.match):
            chance = chance_of(CopyKind.CHANGED if changed else kind, match, token)
            survival *= chance
            if survival < LEAST_CHANCE:
                break
            found.append(token)
            chances.append(chance)
        source = Source.PREDICTION if place.at in self._predicted else self.source
        return Proposal.copied(tuple(found), tuple(chances), source)

    def _empty(self) -> None:
        self._text = IndexedText()
        self._added: dict[tuple[int, ...], int] = {}  # by text outside the conversation: its position
        self._indexed = 0  # number of tokens of the conversation that are indexed
        self._newest: list[int] = []  # the last of the indexed tokens

    def _leave(self) -> None:
        """Forget the place in the text."""
        self._place: CopyPlace | None = None
        self._chosen = 0  # length of the text when the place was chosen
        self._left: int | None = None  # position where the reply left the text; None: never, or too long ago
        self._since: list[int] = []  # the reply's tokens after it left the text at `_left`
        # The replaced tokens and the new ones, if the reply returns to the text at `_place`.
        self._change: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def _sync(self, tokens: Sequence[int]) -> None:
        """Index the new tokens, and follow those that were written since the last proposal."""
        known = list(tokens[self._indexed - len(self._newest) : self._indexed])
        # Drop old predictions when they are longer than the texts in use.
        grown = len(self._text.tokens) > 2 * (len(tokens) + sum(map(len, self._others)) + SEEN)
        if known != self._newest or grown:
            self._empty()
            self._leave()
            self._length = None
        if self._length is None:
            self._begin_text(tokens)
        else:
            for end, token in enumerate(tokens[self._length :], start=self._length + 1):
                step = next(self._path(), None)
                self._text.extend((token,))
                if not self._follow(token, step):
                    self._choose(None)
                    self._chosen = end
        self._length = self._indexed = len(tokens)
        self._newest = list(tokens[-SEEN:])

    def _begin_text(self, tokens: Sequence[int]) -> None:
        for text in self._others:
            if text not in self._added:
                self._text.extend((BREAK,))
                self._added[text] = len(self._text.tokens)
                self._text.extend((*text, BREAK, *self._newest[1 - GRAM :]))
        self._text.extend(tokens[self._indexed :])
        if self._prediction:
            begin = self._added[self._prediction]
            self._predicted = range(begin, begin + len(self._prediction))
            self._left, self._place = begin, CopyPlace(begin, credit=EXPECTED)

    def _path(self) -> Iterator[CopyStep]:
        """Yield the next tokens of the copied text, with known changes. After its end, repeat the yielded tokens."""
        if self._place is None:
            return
        tokens, at, written = self._text.tokens, self._place.at, self._place.written
        end, found = len(tokens), list[int]()
        while at < end + len(found):
            token = tokens[at] if at < end else found[at - end]
            if token == BREAK:
                return
            sources, source = self._changes.get(token, {}), None
            if sources:
                source = next((s for s in sources if tokens[at : at + len(s)] == [*s]), None)
            if not (source or written):  # the usual case: no replacement applies here
                found.append(token)
                at += 1
                yield CopyStep(token, at)
                continue
            put = sources[source] if source else (token,)
            for i, each in enumerate(put[written:], start=written + 1):
                found.append(each)
                if i < len(put):
                    yield CopyStep(each, at, i, source)
            at, written = at + len(source or put), 0
            if found:
                yield CopyStep(found[-1], at, 0, source)

    def _follow(self, token: int, step: CopyStep | None) -> bool:
        """Compare the expected step with this token of the reply; return whether the reply still follows the text."""
        place = self._place
        if place and step:
            kind = CopyKind.CHANGED if step.source else place.kind
            self.chances.learn(kind, place.match, step.token, kept=step.token == token)
        if self._left is not None:
            self._since.append(token)
        if place and step and step.token == token:
            self._place = CopyPlace(step.at, place.equal + 1, place.kind, place.credit, step.written)
            if place.equal + 1 >= GRAM:
                self._return()
            return True
        if step and step.source:
            self._wrong.add(step.source)
            del self._changes[step.source[0]][step.source]
        if place and self._left is None:
            self._left, self._since = place.at, [token]
        if len(self._since) > SEEN:
            self._left, self._since = None, []
        self._place = None
        return False

    def _return(self) -> None:
        """Remember the change that the reply has made, now that the reply copies the text again."""
        if self._change and self._change[0] not in self._wrong:
            source, put = self._change
            known = self._changes.get(source[0], {}) | {source: put}
            self._changes[source[0]] = dict(sorted(known.items(), key=lambda each: -len(each[0])))
        self._left, self._since, self._change = None, [], None

    def _choose(self, present: CopyPlace | None) -> None:
        """Choose the place that most likely gives the next token. `present`: the place until now."""
        offers = [(self.chances.of(present.kind, present.match), present)] if present else []
        if self._left is not None:
            offers += self._near(self._left, len(self._since))
        if far := self._far():
            offers.append(far)
        if not offers:
            return
        self._place = max(offers, key=lambda offer: offer[0])[1]
        if self._place is not present:
            self._change = self._made()
            if self._place.kind is CopyKind.NEAR and self._place.equal >= GRAM:
                self._return()

    def _near(self, left: int, away: int) -> Iterator[tuple[float, CopyPlace]]:
        """Yield places near the expected one to which the reply may return, each with its chance."""
        tokens, expected = self._text.tokens, left + away
        begun = left != self._predicted.start  # words before a prediction replace no part of the prediction
        if begun and expected < len(tokens) and tokens[expected] != BREAK:
            yield self.chances.of(CopyKind.NEAR, 0) * DOUBT ** (away - 1), CopyPlace(expected)
        for at in range(max(left - NEARBY, 0) + 1, min(expected + NEARBY, len(tokens) - 1) + 1):
            if tokens[at - 1] == tokens[-1] and tokens[at] != BREAK:
                equal = min(self._text.match(at), away)
                inserted = at - equal == left
                credit = EXPECTED if inserted or at == expected else 0
                chance = self.chances.of(CopyKind.NEAR, equal + credit) * MISPLACED ** abs(at - expected)
                yield chance, CopyPlace(at, equal, CopyKind.NEAR, credit)

    def _far(self) -> tuple[float, CopyPlace] | None:
        """Return a place with the longest match and its chance: the newest place with the most frequent next token."""
        tokens, found = self._text.tokens, dict[int, list[int]]()
        for at in self._text.repeated(SEEN):
            if tokens[at] != BREAK:
                found.setdefault(self._text.match(at), []).append(at)
        if not found:
            return None
        match = max(found)
        ((token, votes),) = Counter(tokens[at] for at in found[match]).most_common(1)
        inside = self._left is not None and match <= len(self._since)
        chance = self.chances.of(CopyKind.FAR, match) * votes / len(found[match]) * (DOUBT if inside else 1)
        same = (at for at in found[match] if tokens[at] == token)
        # The prompt often contains the prediction, too. Prefer the place in the prediction.
        return chance, CopyPlace(min(same, key=lambda at: at not in self._predicted), match, CopyKind.FAR)

    def _made(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the replaced and the new tokens if the reply returns at `_place`; None if none or too many changed."""
        place, left = self._place, self._left
        if place is None or left is None:
            return None
        back, put = place.at - place.equal, self._since[: max(len(self._since) - place.equal, 0)]
        source = self._text.tokens[left : max(back, left)]
        if back < left or max(len(source), len(put)) > LONGEST or source == put:
            return None
        if not source or not put:  # add the token before an insertion or deletion, to find the place again
            before = self._text.tokens[max(left - 1, 0) : left]
            source, put = before + source, before + put
        return (tuple(source), tuple(put)) if source and put else None
