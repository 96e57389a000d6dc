"""Strategies without judgement: a drafter at a constant depth, and no drafting at all."""

from collections.abc import Sequence

from localspec.events import Cycle, Mode
from localspec.speculation.protocols import Drafter, Proposal


class Plain:
    """Plain decoding: the proposal is always empty."""

    busy_seconds = 0.0
    why_off = None
    plain_step_seconds = None

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        return Proposal(mode=Mode.OFF)

    def settle(self, tokens: Sequence[int]) -> None:
        """Nothing is cached."""

    def learn(self, cycle: Cycle) -> None:
        """Nothing to decide."""


class Fixed:
    """Always the same depth, where there is room."""

    why_off = None
    plain_step_seconds = None

    def __init__(self, drafter: Drafter, depth: int) -> None:
        self._drafter = drafter
        self._depth = depth

    @property
    def busy_seconds(self) -> float:
        return self._drafter.busy_seconds

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        depth = min(self._depth, room)
        return self._drafter.propose(tokens, depth) if depth else Proposal()

    def settle(self, tokens: Sequence[int]) -> None:
        self._drafter.settle(tokens)

    def learn(self, cycle: Cycle) -> None:
        """The depth does not change."""
