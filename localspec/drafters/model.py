"""Drafts by a smaller model. For each draft the model decodes only the tokens that its cache lacks."""

from collections.abc import Callable, Generator, Sequence
from itertools import count

from localspec.algorithm.protocols import Backlog, Decoder, Drafter, Draw, Proposal, Rule, Stopping
from localspec.errors import BackendFailure, ContextFull, LocalspecError, NotEnoughMemory
from localspec.events import Source
from localspec.sampler.passes import ComingRow, Continued, ForwardPass, LateRows, common_prefix_length

# Errors of a draft model after which the target continues without drafts.
FAILURES = (BackendFailure, ContextFull, NotEnoughMemory)

Rows = Generator[ComingRow, int, None]
"""A generator of a draft's rows of logits: after the text, then after each token that is sent to it."""


def draw(
    drafter: Drafter,
    rows: Rows,
    tokens: Sequence[int],
    limit: int,
    rule: Rule,
    stopping: Stopping | None,
    is_end: Callable[[int], bool],
) -> tuple[Proposal, LocalspecError | None]:
    """Return a proposal of at most `limit` tokens to follow `tokens`, and the model's failure or None."""
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
            # Stop after an end-of-generation token. The proposal has this token, so the stop does not bias the text.
            if len(draws) == limit or is_end(found.token):
                break
            if stopping:
                takes_a_run = drafter.model_runs(asked + 1) > drafter.model_runs(asked)
                if takes_a_run and not stopping.goes_on(len(draws)):
                    break
            asked += 1
            row = rows.send(found.token)
    except StopIteration:
        pass
    except FAILURES as error:
        # Propose the tokens drawn before the failure. If the failure depends on them, dropping them biases the text.
        failure, limit = error, len(draws)
    return Proposal.drawn(draws, drafter.source, depth=limit, runs=drafter.model_runs(asked)), failure


# The first draft step decodes at most this many unread tokens. A cache with room for fewer tokens is emptied.
# If the cache lacks at most this many of the oldest tokens, the text is not read again.
AT_ONCE = 8


class ModelDrafter(Drafter):
    """A drafter with a model that shares the target's vocabulary.

    After a cycle the cache contains the text without its last one or two tokens. The next proposal begins by decoding
    these tokens. If a text outgrows the cache, its newest part, half a cache long, is prefilled again.
    """

    source = Source.MODEL

    def __init__(self, decoder: Decoder, is_end: Callable[[int], bool]) -> None:
        self.decoder = decoder
        self._is_end = is_end
        self._first = 0  # position in the text of the first token in the cache

    @property
    def busy_seconds(self) -> float:
        return self.decoder.busy_seconds

    def model_runs(self, depth: int) -> int:
        return depth

    def warm_up(self, batches: Sequence[Sequence[int]]) -> None:
        decode_and_forget(self.decoder, batches)

    def begin_whole(self) -> None:
        self.begin()
        if self._first:
            self._restart(0)

    def observe(self, batch: ForwardPass, kept: int) -> None:
        decoder, end = self.decoder, batch.start + kept
        if end < self._first:
            self._restart(0)
        else:
            keep = self._common_prefix(decoder.tokens, batch, kept)
            if not (batch.start or self._first) and kept - keep > AT_ONCE:
                decoder.recall(batch.tokens[:kept], save=False)  # another reply may have prefilled this text
                keep = self._common_prefix(decoder.tokens, batch, kept)
            if keep < decoder.length:
                decoder.rewind(keep)
        if end + AT_ONCE > self._first + decoder.capacity:
            self._restart(end - decoder.capacity // 2)

    def backlog(self, tokens: Sequence[int]) -> Backlog:
        held = self._held(tokens)
        unread = 0 if self.failure else max(len(tokens) - 1 - self._first - held, 0)
        older = min(self._first, max(self.decoder.capacity // 2 - held - unread, 0))
        return Backlog(unread if unread > AT_ONCE else 0, held, older if older > AT_ONCE else 0)

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
        if self.decoder.length >= len(tokens) - self._first:  # decode the newest token again to get its row
            self.decoder.rewind(len(tokens) - 1 - self._first)
        unread = tokens[self._first + self.decoder.length :]
        rows = rows_after(self.decoder, unread)
        proposal, self.failure = draw(self, rows, tokens, limit, rule, stopping, self._is_end)
        return proposal

    def _common_prefix(self, known: Sequence[int], batch: ForwardPass, kept: int) -> int:
        """Return how many leading tokens of `known` are still in the text. `known` begins at position `_first`."""
        before = max(self._first - batch.start, 0)
        return common_prefix_length(known, max(batch.start - self._first, 0), batch.tokens[before:kept])

    def _held(self, tokens: Sequence[int]) -> int:
        """Return the number of the text's tokens that the cache contains, from `_first` on."""
        return self.decoder.length

    def _unread(self, tokens: Sequence[int], end: int) -> Sequence[int]:
        """Return the draft model's tokens that the cache lacks for the `end` tokens of the text from `_first` on."""
        return tokens[self._first + self.decoder.length : self._first + end]

    def _restart(self, first: int) -> None:
        self.decoder.rollback(0)
        self._first = first


def rows_after(decoder: Decoder, batch: Sequence[int]) -> Rows:
    """Yield the row of logits after the batch, then after each token sent in. A row is valid until the next token."""
    for drafted in count():
        decoder.late = True
        try:
            rows = decoder.decode(batch, rows=1).rows
        finally:
            decoder.late = False
        batch = [(yield rows if isinstance(rows, LateRows) else rows[0])]
        if not drafted:
            decoder.checkpoint(lasting=False)  # a rejected draft steps back to this state


def decode_and_forget(decoder: Decoder, batches: Sequence[Sequence[int]]) -> None:
    """Decode each of these batches, then restore the cache."""
    held = decoder.length
    decoder.checkpoint(lasting=False)
    try:
        for batch in batches:
            decoder.decode(batch, rows=1)
    finally:
        decoder.rewind(held)
