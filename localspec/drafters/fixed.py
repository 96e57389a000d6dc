"""Strategies without judgement: a drafter at a constant depth, and no drafting at all."""

from collections.abc import Sequence

from localspec.algorithm.protocols import Drafter, Proposal, Rule
from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode
from localspec.passes import Pass

READING_CHUNK = 128  # tokens that a drafter catches up on in a cycle


class Plain:
    """Plain decoding: the proposal is always empty."""

    busy_seconds = 0.0
    why_off = failure = plain_step_seconds = None

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        return Proposal(mode=Mode.OFF)

    def follow(self, passed: Pass, kept: int) -> None:
        """Nobody drafts."""

    def learn(self, cycle: Cycle) -> None:
        """Nothing to decide."""


class Fixed:
    """Always the same depth, where there is room; plain steps while the drafter catches up on the text."""

    why_off = plain_step_seconds = None

    def __init__(self, drafter: Drafter, depth: int, rule: Rule) -> None:
        self._drafter = drafter
        self._depth = depth
        self._rule = rule

    @property
    def busy_seconds(self) -> float:
        return self._drafter.busy_seconds

    @property
    def failure(self) -> LocalspecError | None:
        return self._drafter.failure

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        depth = min(self._depth, room)
        if depth and self._drafter.reading(tokens).unread:
            busy = self._drafter.busy_seconds
            self._drafter.read(tokens, READING_CHUNK)
            return Proposal(reading_seconds=self._drafter.busy_seconds - busy)
        return self._drafter.propose(tokens, depth, self._rule) if depth else Proposal()

    def follow(self, passed: Pass, kept: int) -> None:
        self._drafter.follow(passed, kept)

    def learn(self, cycle: Cycle) -> None:
        """The depth does not change."""
