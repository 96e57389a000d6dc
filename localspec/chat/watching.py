"""Who is shown the rows that the tokens of a reply come from."""

from collections.abc import Sequence
from typing import Protocol

from localspec.algorithm.protocols import Draw, Proposal, Rule, Verdict
from localspec.passes import Row


class Watcher(Protocol):
    """Somebody who is shown what a reply's tokens come from."""

    def see(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        """The tokens that a verdict lets through: rows[i] is where tokens[i] was taken from, until the next decode."""


class WatchedRule:
    """A rule whose verdicts others see as well."""

    def __init__(self, rule: Rule, watchers: Sequence[Watcher]) -> None:
        self._rule = rule
        self._watchers = watchers

    @property
    def name(self) -> str:
        return self._rule.name

    @property
    def seed_decides(self) -> bool:
        return self._rule.seed_decides

    def draw(self, row: Row, history: Sequence[int], start: int) -> Draw:
        return self._rule.draw(row, history, start)

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        verdict = self._rule.verify(rows, proposal, history)
        emitted = (*proposal.tokens[: verdict.accepted], verdict.next_token)
        for watcher in self._watchers:
            watcher.see(rows, emitted)
        return verdict
