"""A pair run by hand, with the rows that it judged kept: what a reply never shows."""

from collections.abc import Sequence

from localspec.algorithm.protocols import Draw, Proposal, Rule, Verdict
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.reply import WatchedRule
from localspec.measure.divergence import copied
from localspec.passes import NO_TEXT, Candidates, Row
from localspec.sampler.chain import largest


class RecordingRule(WatchedRule):
    """A rule that keeps copies of the rows that it judged and drew from."""

    def __init__(self, rule: Rule, needed: int | None) -> None:
        """`needed`: how many of the largest logits to keep; None keeps whole rows."""
        super().__init__(rule, ())
        self._needed = needed
        self._judged: list[Row] = []
        self._drawn: list[Row] = []

    def draw(self, row: Row, history: Sequence[int], start: int) -> Draw:
        self._drawn.append(kept(row, self._needed))
        return super().draw(row, history, start)

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        self._judged += [kept(row, self._needed) for row in rows]
        return super().verify(rows, proposal, history)

    def taken(self) -> tuple[list[Row], list[Row]]:
        """The target's rows and the draft's since the last call."""
        rows, self._judged, self._drawn = (self._judged, self._drawn), [], []
        return rows


def kept(row: Row, needed: int | None) -> Row:
    """A copy that outlives the next decode, of the largest logits alone where these suffice."""
    if needed is None or isinstance(row, Candidates):
        return copied(row)
    return Candidates(*largest(row, needed))


def begin(engine: LoadedPair, prompt: Sequence[int]) -> None:
    """The target holds the prompt but for its last token, and the drafters have followed."""
    forget(engine)
    for passed in engine.target.prefill(prompt[:-1]):
        for drafter in engine.drafters:
            drafter.observe(passed, len(passed.tokens))


def forget(engine: LoadedPair) -> None:
    """Empty all caches."""
    engine.target.rollback(0)
    for drafter in engine.drafters:
        drafter.observe(NO_TEXT, 0)
