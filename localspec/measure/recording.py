"""A pair run by hand, with the rows that it judged kept: what a reply never shows."""

from collections.abc import Iterator, Sequence

from localspec.algorithm.protocols import Decoder, Draw, Proposal, Rule, Verdict
from localspec.chat.loaded_pair import LoadedPair
from localspec.measure.divergence import copied
from localspec.passes import NO_TEXT, Candidates, Pass, Row
from localspec.sampler.candidates import largest


class Recording:
    """A decoder that keeps copies of the rows it gave."""

    def __init__(self, decoder: Decoder, needed: int | None) -> None:
        """`needed`: how many of the largest logits to keep; None keeps whole rows."""
        self._decoder = decoder
        self._needed = needed
        self.rows: list[Row] = []

    @property
    def length(self) -> int:
        return self._decoder.length

    @property
    def tokens(self) -> Sequence[int]:
        return self._decoder.tokens

    @property
    def capacity(self) -> int:
        return self._decoder.capacity

    @property
    def busy_seconds(self) -> float:
        return self._decoder.busy_seconds

    def decode(self, tokens: Sequence[int], rows: int) -> Pass:
        passed = self._decoder.decode(tokens, rows)
        self.rows += [kept(row, self._needed) for row in passed.rows]
        return passed

    def prefill(self, tokens: Sequence[int]) -> Iterator[Pass]:
        return self._decoder.prefill(tokens)

    def rollback(self, keep: int) -> None:
        self._decoder.rollback(keep)

    def rewind(self, keep: int) -> int:
        return self._decoder.rewind(keep)

    def recall(self, tokens: Sequence[int]) -> None:
        self._decoder.recall(tokens)

    @property
    def needs_checkpoints(self) -> bool:
        return self._decoder.needs_checkpoints

    def checkpoint(self, *, lasting: bool) -> None:
        self._decoder.checkpoint(lasting=lasting)

    def taken(self) -> list[Row]:
        """The rows since the last call."""
        rows, self.rows = self.rows, []
        return rows


class RecordingRule:
    """A rule that keeps copies of the rows that were drafted from."""

    def __init__(self, rule: Rule, needed: int | None) -> None:
        """`needed`: how many of the largest logits to keep; None keeps whole rows."""
        self._rule = rule
        self._needed = needed
        self.rows: list[Row] = []

    @property
    def name(self) -> str:
        return self._rule.name

    @property
    def seed_decides(self) -> bool:
        return self._rule.seed_decides

    def draw(self, row: Row, history: Sequence[int], start: int) -> Draw:
        self.rows.append(kept(row, self._needed))
        return self._rule.draw(row, history, start)

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        return self._rule.verify(rows, proposal, history)

    def taken(self) -> list[Row]:
        """The rows since the last call."""
        rows, self.rows = self.rows, []
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
            drafter.follow(passed, len(passed.tokens))


def forget(engine: LoadedPair) -> None:
    """Empty all caches."""
    engine.target.rollback(0)
    for drafter in engine.drafters:
        drafter.follow(NO_TEXT, 0)
