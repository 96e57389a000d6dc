"""Whether drafts are kept as often as was published for a pair: a head that is read wrongly fails in silence."""

from collections.abc import Iterator

from localspec.events import Cycle, Notice, Source

ENOUGH = 200  # draft tokens
FAR_BELOW = 0.5  # of the published share


class Expectation:
    """Counts over all replies of a pair, and says once what is far below."""

    def __init__(self, expected: float | None) -> None:
        """`expected`: accepted / drafted tokens; None: nothing was published."""
        self._expected = expected
        self._drafted = self._accepted = 0

    def after_cycle(self, cycle: Cycle) -> Iterator[Notice]:
        if self._expected is None or cycle.source not in (Source.MODEL, Source.HEAD):
            return
        self._drafted += cycle.drafted
        self._accepted += cycle.accepted
        if self._drafted < ENOUGH:
            return
        share, expected, self._expected = self._accepted / self._drafted, self._expected, None
        if share < FAR_BELOW * expected:
            yield Notice(
                f"the target keeps {share:.0%} of the draft's tokens, where {expected:.0%} were published for this "
                "pair: the text is right, but the draft may not be this target's own; `localspec verify` looks closer"
            )
