"""Whether the texts that replays brought follow the exact law, and which mistakes that would have shown."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.measure.verify.law_replay import LawTrial, Place, Replay
from localspec.measure.verify.law_statistics import Pearson, bernstein, needed_distance
from localspec.measure.verify.law_worlds import Meeting
from localspec.sampler.sampling import Sampling

TRIALS = (
    LawTrial("block", "auto", drawn=True),
    LawTrial("block, chosen drafts", "auto", drawn=False),
    LawTrial("rejection", "rejection", drawn=True),
    LawTrial("coupled", "coupled", drawn=True),
    LawTrial("compare", "compare", drawn=False),
)
ALPHA = 1e-4  # how often a correct verifier may raise an alarm, all tests of a run together
EACH = ALPHA / (3 * len(TRIALS) + 1)  # three tests for each trial, and one on whole replies
LEAK = 0.02  # share of rejections turned into acceptances that has to be found
SURE = 5.0  # standard deviations beyond the threshold, so that it is found nearly always
SURELY_FOUND = 3.1  # standard deviations that a chance of 99.9 % leaves room for
REPLAYS = 200_000  # verifications in all
FEWEST, MOST = 24_000, 120_000  # texts for each trial


@dataclass(frozen=True, slots=True)
class LawResult:
    """What the replays of one trial gave."""

    trial: str
    verifications: int
    texts: int
    kept_share: float  # of draft tokens
    impossible: int  # tokens that the target's law excludes
    leak_p: float  # towards the drafts; an upper bound
    tokens_p: float  # of single tokens
    texts_p: float  # of whole texts, their tokens in groups
    smallest_leak: float  # share of rejections turned into acceptances that is found 99.9 times of 100

    @property
    def smallest_p(self) -> float:
        return 0.0 if self.impossible else min(self.leak_p, self.tokens_p, self.texts_p)

    @property
    def exact(self) -> bool:
        """Whether nothing speaks against the exact law, at the level of the whole run."""
        return self.smallest_p >= EACH


def replays(meetings: Sequence[Meeting], sampling: Sampling, seed: int) -> list[Replay]:
    """A replay for each trial, each with randomness of its own."""
    return [Replay(trial, meetings, sampling, seed + (n << 32)) for n, trial in enumerate(TRIALS, start=1)]


def texts_needed(replay: Replay) -> int:
    """So many that a leak of LEAK moves the directed sum SURE standard deviations beyond its threshold."""
    if not replay.information:
        return FEWEST
    distance = needed_distance(EACH) + SURE
    return max(FEWEST, min(MOST, math.ceil((distance / LEAK) ** 2 / replay.information)))


def run(trials: Sequence[Replay]) -> Iterator[float]:
    """Replay all trials in turns until each has its texts, yielding the share that is done."""
    needed = [texts_needed(replay) for replay in trials]
    while True:
        shares = [min(1.0, replay.texts / count) for replay, count in zip(trials, needed, strict=True)]
        behind = min(shares)
        enough = sum(replay.verified for replay in trials) >= REPLAYS
        yield behind if behind < 1.0 or enough else 0.99
        if behind == 1.0 and enough:
            return
        for replay, share in zip(trials, shares, strict=True):
            if share == behind:
                replay.turn()


def result(replay: Replay) -> LawResult:
    """The three tests of a trial, on the texts so far."""
    tokens, texts = Pearson(), Pearson()
    total = variance = bound = impossible = 0.0
    for here in replay.places:
        found, counts = outcomes(here)
        draws = int(counts.sum())
        impossible += here.counts.total() - draws
        weights = [position.leak.weights for position in here.positions if position.leak]
        total += sum(float(counts @ w[found[:, i]]) for i, w in enumerate(weights))
        variance += draws * sum(position.leak.variance for position in here.positions if position.leak)
        bound = max(bound, sum(float(np.abs(w).max()) for w in weights))
        for i, position in enumerate(here.positions):
            seen = np.bincount(found[:, i], weights=counts, minlength=len(position.p.ids))
            tokens.add(seen, position.p.probabilities)
        texts.add(*in_groups(here, found, counts))
    return LawResult(
        trial=replay.trial.name,
        verifications=replay.verified,
        texts=replay.texts,
        kept_share=replay.kept / replay.drafted if replay.drafted else 0.0,
        impossible=int(impossible),
        leak_p=bernstein(total, variance, bound),
        tokens_p=tokens.p_value(),
        texts_p=texts.p_value(),
        smallest_leak=smallest_leak(replay),
    )


def outcomes(here: Place) -> tuple[np.ndarray, np.ndarray]:
    """The possible texts as indices into the laws, int [n, positions], and how often each came, float [n]."""
    texts = np.array(list(here.counts), dtype=np.int64).reshape(-1, len(here.positions))
    counts = np.array(list(here.counts.values()), dtype=float)
    found = np.empty_like(texts)
    possible = np.ones(len(texts), dtype=bool)
    for i, position in enumerate(here.positions):
        ids = position.p.ids
        found[:, i] = np.minimum(ids.searchsorted(texts[:, i]), len(ids) - 1)
        possible &= ids[found[:, i]] == texts[:, i]
    return found[possible], counts[possible]


def in_groups(here: Place, found: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Texts counted by the groups of their tokens, and the law of that."""
    law, cell = np.ones(1), np.zeros(len(found), dtype=int)
    for i, position in enumerate(here.positions):
        size = int(position.groups.max()) + 1
        shares = np.bincount(position.groups, weights=position.p.probabilities, minlength=size)
        law = np.outer(law, shares).ravel()
        cell = cell * size + position.groups[found[:, i]]
    seen = np.bincount(cell, weights=counts, minlength=len(law))
    return seen[law > 0.0], law[law > 0.0]


def smallest_leak(replay: Replay) -> float:
    """By the directed sum; 1 where that could show none. Tokens that p excludes give it away sooner."""
    information = replay.texts * replay.information
    return min(1.0, (needed_distance(EACH) + SURELY_FOUND) / math.sqrt(information)) if information else 1.0
