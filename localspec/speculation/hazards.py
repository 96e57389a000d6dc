"""How likely the target keeps the next draft token, by its position in the proposal.

A rejected token hides what would have become of those after it, so positions are counted as hazards: of the
cycles in which position i was reached and drafted, how many kept it (Kaplan and Meier 1958).
"""

from dataclasses import dataclass
from math import isfinite

DECAY = 0.996  # per emitted token: about 250 tokens of memory
FAST_DECAY = 0.95  # per emitted token: about 20 tokens
CHAIN = 8.0  # pseudo-counts with which a position shrinks to the one before it
PRIOR_RATE, PRIOR_COUNT = 0.7, 2.5  # what a pair that was never seen is believed to do
SURPRISE = 2.0  # standard errors between fast and slow rates that mean another kind of text
REMEMBERED = 30.0  # judged tokens of earlier replies
FORGET, INJECT = 0.25, 4.0


@dataclass(frozen=True, slots=True)
class HazardCounts:
    """Discounted counts by position, in a form that can be stored."""

    kept: tuple[float, ...]
    rejected: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for what are no counts, as a damaged file may hold."""
        if len(self.kept) != len(self.rejected):
            raise ValueError(f"every position has both counts: {self}")
        if not all(isfinite(count) and count >= 0 for count in (*self.kept, *self.rejected)):
            raise ValueError(f"counts are finite and not negative: {self}")


class Hazards:
    """Discounted counts of kept and rejected draft tokens by position; quick to notice another text."""

    def __init__(self, depth: int, prior: HazardCounts | None = None) -> None:
        self._kept = [0.0] * depth
        self._rejected = [0.0] * depth
        self._prior = 1.0  # how much of the prior is left; evidence wears it off
        self._fast_kept = self._fast_rejected = 0.0
        if prior is not None:
            for i, (kept, rejected) in enumerate(zip(prior.kept, prior.rejected, strict=True)):
                if i < depth:
                    self._kept[i], self._rejected[i] = kept, rejected

    @property
    def kept(self) -> float:
        """Draft tokens kept lately."""
        return sum(self._kept)

    @property
    def samples(self) -> float:
        """Draft tokens judged lately."""
        return sum(self._kept) + sum(self._rejected)

    @property
    def pooled(self) -> float:
        """The chance that a draft token which is reached is kept, whatever its position."""
        prior = PRIOR_COUNT * self._prior
        tried = self.samples + prior
        return (self.kept + PRIOR_RATE * prior) / tried if tried else PRIOR_RATE

    def begin(self) -> None:
        """Another reply: earlier ones count for so many tokens at most."""
        weight = min(1.0, REMEMBERED / max(self.samples, 1.0))
        self._kept = [k * weight for k in self._kept]
        self._rejected = [r * weight for r in self._rejected]
        self._fast_kept = self._fast_rejected = 0.0

    def counts(self) -> HazardCounts:
        return HazardCounts(tuple(self._kept), tuple(self._rejected))

    def rates(self, optimism: float = 0.0) -> list[float]:
        """The hazard of each position: P(kept | reached), plus `optimism` standard errors."""
        rate = self.pooled
        tried = self.samples + PRIOR_COUNT * self._prior
        bonus = optimism * (rate * (1 - rate) / (tried + 1)) ** 0.5
        found = []
        for k, r in zip(self._kept, self._rejected, strict=True):
            rate = (k + CHAIN * rate) / (k + r + CHAIN)
            found.append(min(rate + bonus, 1.0))
        return found

    def learn(self, drafted: int, accepted: int, emitted: int, dropped: float | None = None) -> None:
        """The outcome of a proposal; `dropped`: the chance of a further token that was drawn and left out.

        Counting only the confident ones would flatter the draft, so a dropped token counts as its chance.
        """
        decay, fast = DECAY**emitted, FAST_DECAY**emitted
        self._kept = [k * decay for k in self._kept]
        self._rejected = [r * decay for r in self._rejected]
        self._prior *= decay
        self._fast_kept *= fast
        self._fast_rejected *= fast
        for i in range(min(accepted, len(self._kept))):
            self._kept[i] += 1
        self._fast_kept += accepted
        if accepted < drafted:
            self._fast_rejected += 1
            if accepted < len(self._rejected):
                self._rejected[accepted] += 1
        if dropped is not None and accepted == drafted < len(self._kept):
            self._kept[drafted] += dropped
            self._rejected[drafted] += 1 - dropped
        self._notice_change()

    def _notice_change(self) -> None:
        tried, fast_tried = self.samples, self._fast_kept + self._fast_rejected
        if fast_tried < 4 or tried < 2 * fast_tried:
            return
        slow, fast = sum(self._kept) / tried, self._fast_kept / fast_tried
        error = (max(slow * (1 - slow), 0.01) / fast_tried) ** 0.5
        if abs(fast - slow) > SURPRISE * error:
            self._kept = [k * FORGET for k in self._kept]
            self._rejected = [r * FORGET for r in self._rejected]
            self._kept[0] += INJECT * fast
            self._rejected[0] += INJECT * (1 - fast)
