"""A smaller model that proposes: it decodes only what its cache lacks, one token ahead at a time."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from localspec.algorithm.protocols import Backlog, Decoder, Drafter, Draw, Proposal, Rule, Stopping
from localspec.errors import BackendFailure, ContextFull, LocalspecError, NotEnoughMemory
from localspec.events import Source
from localspec.sampler.passes import Continued, Pass, Row, standing

# Errors of a draft model; its target continues without it.
FAILURES = (BackendFailure, ContextFull, NotEnoughMemory)

Rows = Generator[Row, int, None]
"""The row after the text, then after each token that is sent, until there is none."""


def draw(
    drafter: Drafter,
    rows: Rows,
    tokens: Sequence[int],
    limit: int,
    rule: Rule,
    stopping: Stopping | None,
    is_end: Callable[[int], bool],
) -> tuple[Proposal, LocalspecError | None]:
    """At least one row and at most `limit` tokens to follow `tokens`; and why the model failed, if it did."""
    drafted, draws, asked = list[int](), list[Draw](), 1
    text = Continued(tokens, drafted)
    failure: LocalspecError | None = None
    try:
        row = next(rows)
        while True:
            found = rule.draw(row, text, len(tokens))
            if stopping and not stopping.keeps(found.confidence, len(draws)):
                break
            draws.append(found)
            drafted.append(found.token)
            # Nothing can follow an end-of-generation token; it stays in the proposal, so stopping biases nothing.
            if len(draws) == limit or is_end(found.token):
                break
            takes_a_run = drafter.model_runs(asked + 1) > drafter.model_runs(asked)
            if stopping and takes_a_run and not stopping.goes_on(len(draws)):
                break
            asked += 1
            row = rows.send(found.token)
    except StopIteration:
        pass
    except FAILURES as error:
        # Tokens drawn before the failure are proposed: dropping them could favour tokens that do not fail.
        failure, limit = error, len(draws)
    return Proposal.drawn(draws, drafter.source, depth=limit, runs=drafter.model_runs(asked)), failure


AT_ONCE = 8  # unread tokens that are decoded along with the first draft step
ROOM = 40  # tokens that a proposal may need behind the text, a quarter of the cache at most


class ModelDrafter(Drafter):
    """Drafts with a model that shares the target's vocabulary.

    After a cycle the cache holds a prefix of the text that lacks one or two tokens. The next proposal begins with one
    decode of these. A text that outgrows the cache is read again from half a cache before its end.
    """

    source = Source.MODEL
    # Surrounds each proposal, as drafters of other replies may share the passes of its model.
    drafting: Callable[[], AbstractContextManager[object]] = nullcontext
    _restarts_with = 2  # this part of the cache's capacity

    def __init__(self, decoder: Decoder, is_end: Callable[[int], bool], *, one_by_one: bool = False) -> None:
        """`one_by_one`: whether two missing tokens are decoded one after the other, so that all passes are equal."""
        self.decoder = decoder
        self._is_end = is_end
        self._one_by_one = one_by_one
        self._room = min(ROOM, decoder.capacity // 4)
        self._first = 0  # the text's position of the first token in the cache

    @property
    def busy_seconds(self) -> float:
        return self.decoder.busy_seconds

    def model_runs(self, depth: int) -> int:
        return depth

    def warm_up(self, batches: Sequence[Sequence[int]]) -> None:
        decode_and_forget(self.decoder, batches)

    def observe(self, batch: Pass, kept: int) -> None:
        decoder, end = self.decoder, batch.start + kept
        before = max(self._first - batch.start, 0)
        start = max(batch.start - self._first, 0)
        if end < self._first:
            self._restart(0)
        else:
            if not (batch.start or self._first):
                decoder.recall(batch.tokens[:kept], save=False)  # another reply may have read it
            decoder.rewind(standing(decoder.tokens, start, batch.tokens[before:kept]))
        if end + self._room > self._first + decoder.capacity:
            self._restart(end - decoder.capacity // 2)

    def backlog(self, tokens: Sequence[int]) -> Backlog:
        held = self._held(tokens)
        unread = 0 if self.failure else max(len(tokens) - 1 - self._first - held, 0)
        spare = self.decoder.capacity // self._restarts_with - held - unread
        return Backlog(unread if unread > AT_ONCE else 0, held, min(self._first, max(spare, 0)))

    def read(self, tokens: Sequence[int], most: int) -> int:
        held = self._held(tokens)
        count = min(most, len(tokens) - 1 - self._first - held)
        try:
            self.decoder.decode(self._unread(tokens, held + count), rows=0)
            self.decoder.checkpoint(lasting=True)
        except FAILURES as error:
            self.failure = error
        return count

    def restart(self, tokens: Sequence[int], window: int) -> None:
        self._restart(max(len(tokens) - 1 - window, 0))

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        limit = min(limit, self.decoder.capacity - len(tokens) + self._first + 1)
        if self.failure or limit <= 0:
            return Proposal()
        unread = tokens[self._first + self.decoder.length :]
        late = self._one_by_one and len(unread) == 2
        rows = rows_after(self.decoder, *((unread[:1], unread[1:]) if late else (unread,)))
        with self.drafting():
            proposal, self.failure = draw(self, rows, tokens, limit, rule, stopping, self._is_end)
        return replace(proposal, runs=proposal.runs + late)

    def _held(self, tokens: Sequence[int]) -> int:
        """How many tokens of the text, from `_first` on, are in the cache."""
        return self.decoder.length

    def _unread(self, tokens: Sequence[int], end: int) -> Sequence[int]:
        """What the cache lacks of the tokens from `_first` on, `end` of them."""
        return tokens[self._first + self.decoder.length : self._first + end]

    def _restart(self, first: int) -> None:
        """Begin with an empty cache at this position of the text."""
        self.decoder.rollback(0)
        self._first = first


def rows_after(decoder: Decoder, *unread: Sequence[int]) -> Rows:
    """Decode the unread tokens, batch by batch, then each token that is sent."""
    for batch in unread:
        (row,) = decoder.decode(batch, rows=1).rows
    token = yield row
    decoder.checkpoint(lasting=False)  # the cache holds the text, and what follows may not be of it
    while True:
        (row,) = decoder.decode([token], rows=1).rows
        token = yield row


def decode_and_forget(decoder: Decoder, batches: Sequence[Sequence[int]]) -> None:
    """Decode these batches once; the cache ends as it began."""
    held = decoder.length
    decoder.checkpoint(lasting=False)
    try:
        for batch in batches:
            decoder.decode(batch, rows=1)
    finally:
        decoder.rewind(held)
