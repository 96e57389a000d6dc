"""A reply while it grows: tokens become text, cycles become counts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from localspec.chat.text import TextPart, TextStream
from localspec.chat.vocabulary import Vocabulary
from localspec.events import Cycle, Event, FinishReason, Kind, Origin, Piece, Reply, Source
from localspec.stats import Tally
from localspec.structure.constraint import Constrained
from localspec.structure.tools import CallFormat, calls_in


class Writing:
    """Collects one reply; `absorb` passes events on, `result` is the whole."""

    def __init__(
        self,
        text: TextStream,
        tally: Tally,
        vocabulary: Vocabulary,
        constraint: Constrained | None = None,
        calls: CallFormat | None = None,
        *,
        asked: float,
    ) -> None:
        """`asked`: when the reply was wanted, on `perf_counter`."""
        self.tokens: list[int] = []
        self.ended = False  # by an end-of-generation token, a stop string or a grammar
        self._text = text
        self._tally = tally
        self._vocabulary = vocabulary
        self._constraint = constraint
        self._calls = calls
        self._asked = asked
        self._parts: dict[Kind, list[str]] = {kind: [] for kind in Kind}

    def absorb(self, cycle: Cycle) -> Iterator[Event]:
        """The cycle, cut where a stop string ended the reply, and the text that it completed."""
        began = perf_counter()
        pieces: list[Piece] = []
        used = 0
        for token, origin in zip(cycle.tokens, cycle.origins, strict=True):
            used += 1
            if self._vocabulary.is_end(token):
                self.ended = True
                break
            pieces += self._pieces(self._text.push(token), origin, cycle.source)
            if self._text.stopped:
                self.ended = True
                break
        cycle = replace(
            cycle,
            tokens=cycle.tokens[:used],
            origins=cycle.origins[:used],
            accepted=cycle.origins[:used].count(Origin.ACCEPTED),
            other_seconds=cycle.other_seconds + perf_counter() - began,
        )
        if not self.tokens:
            self._tally.first_token_seconds = perf_counter() - self._asked
        self.tokens += cycle.tokens
        self._tally.add(cycle)
        yield cycle
        yield from pieces

    def finish(self) -> Iterator[Piece]:
        """Text that was held back in case more would come."""
        # Cut just before the end that a grammar left as the only choice: nothing is missing.
        self.ended = self.ended or (self._constraint is not None and self._constraint.finished)
        yield from self._pieces(self._text.flush(), Origin.PLAIN, Source.PLAIN)

    def result(self, seed: int, *, cancelled: bool) -> Reply:
        # A reply that ended by itself in the very cycle in which it was cancelled is a finished reply.
        reason = FinishReason.LENGTH
        if self.ended:
            reason = FinishReason.STOP
        elif cancelled:
            reason = FinishReason.CANCELLED
        return Reply(
            text="".join(self._parts[Kind.ANSWER]),
            reasoning="".join(self._parts[Kind.REASONING]),
            tokens=tuple(self.tokens),
            seed=seed,
            finish_reason=reason,
            stats=self._tally.stats(),
            tool_calls=calls_in("".join(self._parts[Kind.TOOL_CALL]), self._calls) if self._calls else (),
        )

    def _pieces(self, parts: Sequence[TextPart], origin: Origin, source: Source) -> list[Piece]:
        for part in parts:
            self._parts[part.kind].append(part.text)
        return [Piece(part.text, part.kind, origin, source) for part in parts]
