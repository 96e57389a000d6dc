"""Where costs hold: at about one length of the context, and with one number of threads."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, log2

from localspec.control.costs import Costs, CostTable

SHORT = 2048  # tokens: up to here attention is a small part of a pass; every doubling beyond is a place of its own


class Places:
    """The costs of a pair by place. One that is new begins with those of the nearest as a guess, so measured anew."""

    def __init__(self, tables: Sequence[CostTable], threads: Callable[[], int] = lambda: 0) -> None:
        """`tables`: one at least, each for its length of context; `threads`: how many decode now."""
        self._threads = threads
        self._usual_threads = threads()
        self._known = {(doublings(t.context_tokens), self._usual_threads): Costs(t) for t in tables}
        self.costs = next(iter(self._known.values()))  # at the place of the coming pass, or of the latest one

    def move(self, context_tokens: int) -> None:
        """The coming pass meets so many tokens."""
        place = doublings(context_tokens), self._threads()
        if place not in self._known:
            nearest = min(self._known, key=lambda other: (other[1] != place[1], abs(other[0] - place[0])))
            guess = replace(self._known[nearest].table(), measured=False, context_tokens=context_tokens)
            self._known[place] = Costs(guess)
        self.costs = self._known[place]

    def calibrated(self, table: CostTable) -> None:
        """Forget what was learned where `table` was measured, and start from it."""
        self.costs = self._known[doublings(table.context_tokens), self._threads()] = Costs(table)

    def tables(self) -> tuple[CostTable, ...]:
        """What was learned with the usual threads, for the next run: all that was measured, or one guess."""
        found = [
            costs.table() for (_, threads), costs in self._known.items() if threads == self._usual_threads
        ]
        return tuple(table for table in found if table.measured) or tuple(found[:1])


def doublings(context_tokens: int) -> int:
    """How often the shortest class of contexts has to be doubled to hold so many tokens."""
    return max(ceil(log2(max(context_tokens, 1) / SHORT)), 0)
