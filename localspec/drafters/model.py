"""A smaller model that proposes: it decodes only what its cache lacks, one token ahead at a time."""

from collections.abc import Callable, Sequence

from localspec.algorithm.protocols import Decoder, Draw, Proposal, Reading, Rule, Stopping
from localspec.errors import BackendFailure, ContextFull, LocalspecError, NotEnoughMemory
from localspec.events import Source
from localspec.passes import Pass, standing

# Of a draft model: its target goes on without it.
FAILURES = (BackendFailure, ContextFull, NotEnoughMemory)
AT_ONCE = 8  # unread tokens that are decoded along with the first draft step
ROOM = 40  # tokens that a proposal may need behind the text, a quarter of the cache at most


class ModelDrafter:
    """Drafts with a model that shares the target's vocabulary.

    After a cycle the cache holds the newest token and all draft tokens but the last; acceptance keeps a prefix of
    that, so the next proposal begins with one decode of the one or two tokens that are missing. A text that outgrows
    the cache is read anew from the middle of a cache's length before its end.
    """

    source = Source.MODEL
    wants = None

    def __init__(self, decoder: Decoder, is_end: Callable[[int], bool], *, one_by_one: bool = False) -> None:
        """`one_by_one`: whether two missing tokens are decoded one after the other, so that all passes are equal."""
        self.decoder = decoder
        self._is_end = is_end
        self._one_by_one = one_by_one
        self._room = min(ROOM, decoder.capacity // 4)
        self._first = 0  # the text's position of the first token in the cache
        self.failure: LocalspecError | None = None

    @property
    def busy_seconds(self) -> float:
        return self.decoder.busy_seconds

    def steps(self, depth: int) -> int:
        return depth

    def rehearse(self, batches: Sequence[Sequence[int]]) -> None:
        rehearse(self.decoder, batches)

    def begin(self) -> None:
        self.failure = None

    def follow(self, passed: Pass, kept: int) -> None:
        decoder, end = self.decoder, passed.start + kept
        before = max(self._first - passed.start, 0)
        start = max(passed.start - self._first, 0)
        if end < self._first:
            self._restart(0)
        else:
            decoder.rewind(standing(decoder.tokens, start, passed.tokens[before:kept]))
        if end + self._room > self._first + decoder.capacity:
            self._restart(end - decoder.capacity // 2)

    def reading(self, tokens: Sequence[int]) -> Reading:
        held = self.decoder.length
        unread = 0 if self.failure else len(tokens) - 1 - self._first - held
        spare = self.decoder.capacity // 2 - held - unread
        return Reading(unread if unread > AT_ONCE else 0, held, min(self._first, max(spare, 0)))

    def read(self, tokens: Sequence[int], most: int) -> int:
        begin = self._first + self.decoder.length
        end = min(begin + most, len(tokens) - 1)
        try:
            self.decoder.decode(tokens[begin:end], rows=0)
            self.decoder.checkpoint(lasting=True)
        except FAILURES as error:
            self.failure = error
        return end - begin

    def restart(self, tokens: Sequence[int], window: int) -> None:
        self._restart(max(len(tokens) - 1 - window, 0))

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        decoder, text = self.decoder, list(tokens)
        limit = 0 if self.failure else min(limit, decoder.capacity - len(text) + self._first + 1)
        draws: list[Draw] = []
        runs = 0
        while len(draws) < limit:
            if len(draws) == 1:  # the cache holds the text, and what follows may not be of it
                decoder.checkpoint(lasting=False)
            try:
                runs += 1
                if self._one_by_one and self._first + decoder.length == len(text) - 2:
                    decoder.decode(text[-2:-1], rows=1)
                    runs += 1
                (row,) = decoder.decode(text[self._first + decoder.length :], rows=1).rows
                draw = rule.draw(row, text, len(tokens))
            except FAILURES as error:
                # What was drawn before is proposed: dropping it could favour the tokens that do not fail.
                self.failure, limit = error, len(draws)
                break
            if stopping and not stopping.keeps(draw.confidence, len(draws)):
                break
            draws.append(draw)
            text.append(draw.token)
            # Nothing can follow an end-of-generation token; it stays in the proposal, so stopping biases nothing.
            if self._is_end(draw.token) or (stopping and not stopping.goes_on(len(draws))):
                break
        return Proposal.drawn(draws, self.source, depth=max(limit, 0), runs=runs)

    def _restart(self, first: int) -> None:
        """Begin with an empty cache at this position of the text."""
        self.decoder.rollback(0)
        self._first = first


def rehearse(decoder: Decoder, batches: Sequence[Sequence[int]]) -> None:
    """Decode these batches once; the cache ends as it began."""
    held = decoder.length
    decoder.checkpoint(lasting=False)
    try:
        for batch in batches:
            decoder.decode(batch, rows=1)
    finally:
        decoder.rewind(held)
