"""Strategies without judgement: a drafter at a constant depth, and no drafting at all."""

from collections.abc import Iterator, Sequence

from localspec.algorithm.protocols import Drafter, Proposal, Rule
from localspec.drafters.prediction import PredictionDrafter
from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode
from localspec.passes import Pass

READING_CHUNK = 128  # tokens that a drafter catches up on at once


class Plain:
    """Plain decoding: the proposal is always empty."""

    why_off = failure = plain_step_seconds = None

    def __init__(self, readers: Sequence[Drafter] = ()) -> None:
        """`readers` follow the text all the same: a head cannot read later what it did not see."""
        self._readers = readers

    @property
    def busy_seconds(self) -> float:
        return sum(reader.busy_seconds for reader in self._readers)

    def catch_up(self, tokens: Sequence[int]) -> Iterator[None]:
        return iter(())

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        return Proposal(mode=Mode.OFF)

    def follow(self, passed: Pass, kept: int) -> None:
        for reader in self._readers:
            reader.follow(passed, kept)

    def learn(self, cycle: Cycle) -> None:
        """Nothing to decide."""


class Fixed:
    """Always the same depth, where there is room; plain steps while the drafter catches up on tokens of another one.

    What a prediction makes likely goes first, at any depth: that depends on the text alone, too.
    """

    why_off = plain_step_seconds = None

    def __init__(
        self,
        drafter: Drafter,
        depth: int,
        rule: Rule,
        prediction: PredictionDrafter | None = None,
        most: int = 0,
    ) -> None:
        """`most`: tokens that may be proposed from the prediction."""
        self._drafter = drafter
        self._prediction = prediction
        self._most = most
        self._depth = depth
        self._rule = rule

    @property
    def busy_seconds(self) -> float:
        return self._drafter.busy_seconds

    @property
    def failure(self) -> LocalspecError | None:
        return self._drafter.failure

    def catch_up(self, tokens: Sequence[int]) -> Iterator[None]:
        """All of it: what a drafter has read before must not decide what a seed repeats."""
        while self._depth and self._drafter.reading(tokens).unread:
            self._read(tokens)
            yield

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        if self._prediction:
            found = self._prediction.likely(tokens, min(self._most, room))
            if found.tokens:
                return found
        depth = min(self._depth, room)
        if depth and self._drafter.reading(tokens).unread:
            busy = self._drafter.busy_seconds
            self._read(tokens)
            return Proposal(reading_seconds=self._drafter.busy_seconds - busy)
        return self._drafter.propose(tokens, depth, self._rule) if depth else Proposal()

    def follow(self, passed: Pass, kept: int) -> None:
        self._drafter.follow(passed, kept)

    def learn(self, cycle: Cycle) -> None:
        """The depth does not change."""

    def _read(self, tokens: Sequence[int]) -> None:
        self._drafter.read(tokens, READING_CHUNK)
