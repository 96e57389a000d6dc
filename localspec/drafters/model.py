"""Drafts by a smaller model. For each draft the model decodes only the tokens that its cache lacks.

A model of another vocabulary is restricted to the tokens that it shares with the target: token-level intersection
(Timor et al. 2025, arXiv 2502.05202, algorithm 4). There q is the draft's distribution without the tokens that the
target lacks. It is a distribution over the target's tokens, so every acceptance rule works unchanged.
"""

from bisect import bisect_left, bisect_right
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate, count

import numpy as np

from localspec.algorithm.protocols import (
    Backlog,
    Decoder,
    Drafter,
    Draw,
    Proposal,
    Rule,
    Stopping,
    Vocabulary,
)
from localspec.errors import BackendFailure, ContextFull, LocalspecError, NotEnoughMemory
from localspec.events import Source
from localspec.gguf.matching import SharedTokens
from localspec.sampler.chain import SPARE, largest
from localspec.sampler.passes import (
    Candidates,
    ComingRow,
    Continued,
    ForwardPass,
    LateRows,
    Row,
    arrived,
    common_prefix_length,
)

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


LOOK_BACK = 48  # the text is translated again from the beginning of a word among this many newest tokens


class Translation:
    """The text so far, in tokens of the target and in tokens of the draft model."""

    def __init__(self, draft: Vocabulary, target: Vocabulary, shared: Mapping[int, int]) -> None:
        """`shared`: maps a target token to the draft model's token with the same bytes or meaning."""
        self._draft, self._target, self._shared = draft, target, shared
        spaced = b"".join(map(draft.piece, draft.tokenize("a", parse_special=False)))
        self._adds_space = spaced == b" a"
        self.tokens: list[int] = []  # tokens of the target
        self.draft_tokens: list[int] = []  # tokens of the draft model
        self.stable = 0  # number of leading `draft_tokens` that the latest `extend` left unchanged
        self._draft_counts: list[int] = []  # by target token: the number of `draft_tokens` up to its end
        self._whole: list[bool] = []  # by target token: whether a draft token ends at the same place

    def cut(self, count: int) -> None:
        """Keep at most the first `count` of `tokens`; the next `extend` shortens `draft_tokens`."""
        if count < len(self.tokens):
            self._keep(max(count - 1, 0))

    def clear(self) -> None:
        self._keep(0)
        self.draft_tokens.clear()

    def target_count(self, draft_tokens: int) -> int:
        """Return how many target tokens the first `draft_tokens` tokens of the draft model cover completely."""
        return bisect_right(self._draft_counts, draft_tokens)

    def draft_count(self, count: int) -> int:
        """Return how many tokens of the draft model cover the first `count` target tokens."""
        return self._draft_counts[count - 1] if count else 0

    def extend(self, tokens: Sequence[int]) -> bool:
        """Add these target tokens; return False if the text now ends inside a character."""
        text = self.tokens[(keep := self._beginning()) :] + list(tokens)
        self._keep(keep)
        self.stable = self.draft_count(keep) if keep else 0
        del self.draft_tokens[self.stable :]
        if not keep and self._draft.add_bos and self._draft.bos is not None:
            self.draft_tokens.append(self._draft.bos)
        is_whole = True
        while text:
            count = next((i for i, token in enumerate(text) if self._target.is_special(token)), len(text))
            is_whole = self._say(text[:count]) if count else True
            for token in text[count : count + 1]:
                word = self._shared.get(token)
                if word is not None and self.draft_tokens != [word]:  # the draft's own bos may be there
                    self.draft_tokens.append(word)
                self._take([token], [len(self.draft_tokens)], [True])
                is_whole = True
            text = text[count + 1 :]
        return is_whole

    def _keep(self, count: int) -> None:
        del self.tokens[count:], self._draft_counts[count:], self._whole[count:]

    def _beginning(self) -> int:
        """Return how many leading target tokens keep their translation when the text grows."""
        count = len(self.tokens)
        for i in range(count - 1, max(count - LOOK_BACK, 0), -1):
            before, piece = self._target.piece(self.tokens[i - 1]), self._target.piece(self.tokens[i])
            begins_word = piece.startswith(b" ") and not before[-1:].isspace() and piece.strip()
            if self._whole[i - 1] and (begins_word or self._target.is_special(self.tokens[i - 1])):
                return i
        return next((i for i in range(count - LOOK_BACK // 2, 0, -1) if self._whole[i - 1]), 0)

    def _say(self, tokens: Sequence[int]) -> bool:
        pieces = [self._target.piece(token) for token in tokens]
        decoder = getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(b"".join(pieces))
        is_whole = not decoder.getstate()[0]  # whether the last character is complete
        if self._adds_space and text.startswith(" "):
            text = text[1:]
        draft_tokens = self._draft.tokenize(text, parse_special=False)
        ends = list(accumulate(map(len, pieces)))
        starts = list(accumulate((len(self._draft.piece(word)) for word in draft_tokens), initial=0))
        if starts[-1] != ends[-1]:  # the bytes differ: invalid UTF-8, or a space that the tokeniser adds
            ends = [-1] * (len(ends) - 1) + [starts[-1]]
        known = set(starts if is_whole else starts[:-1])
        before = len(self.draft_tokens)
        self.draft_tokens += draft_tokens
        self._take(
            tokens, [before + bisect_left(starts, end) for end in ends], [end in known for end in ends]
        )
        return is_whole

    def _take(self, tokens: Sequence[int], draft_count: Sequence[int], whole: Sequence[bool]) -> None:
        self.tokens += tokens
        self._draft_counts += draft_count
        self._whole += whole


class OtherVocabularyDrafter(ModelDrafter):
    """A drafter that translates the text for its draft model; each cycle translates only the end of the text."""

    def __init__(
        self,
        decoder: Decoder,
        draft: Vocabulary,
        target: Vocabulary,
        shared: SharedTokens,
        is_end: Callable[[int], bool],
    ) -> None:
        """`is_end`: returns whether a target token ends a reply."""
        super().__init__(decoder, is_end)
        self._draft_tokens = {
            int(token): int(word) for word, token in zip(shared.draft_ids, shared.target_ids, strict=True)
        }
        self._translation = Translation(draft, target, self._draft_tokens)
        order = shared.target_ids.argsort()
        self._draft_ids, self._target_ids = shared.draft_ids[order], shared.target_ids[order]
        self._tokens = {word: token for token, word in self._draft_tokens.items()}
        self._is_whole = True  # whether the text ends at the end of a character

    def warm_up(self, batches: Sequence[Sequence[int]]) -> None:
        draft_tokens = len(self._tokens)
        decode_and_forget(
            self.decoder, [[int(self._draft_ids[i % draft_tokens]) for i in batch] for batch in batches]
        )

    def observe(self, batch: ForwardPass, kept: int) -> None:
        if batch.start + kept < self._first:
            self._restart(0)
        else:
            self._translation.cut(self._common_prefix(self._translation.tokens, batch, kept))

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        if self.failure or not self._translate(tokens):
            return Proposal()
        draft_tokens = self._translation.draft_tokens
        if (limit := min(limit, self.decoder.capacity - len(draft_tokens) + 1)) <= 0:
            return Proposal()
        rows = self._rows(draft_tokens[self.decoder.length :])
        proposal, self.failure = draw(self, rows, tokens, limit, rule, stopping, self._is_end)
        return proposal

    def _rows(self, unread: Sequence[int]) -> Rows:
        """Yield the draft model's rows with the target's token ids; stop before a row that has no shared token."""
        rows = rows_after(self.decoder, unread)
        row = next(rows)
        while len((output_tokens := self._output_tokens(arrived(row))).ids):
            row = rows.send(self._draft_tokens[(yield output_tokens)])

    def _held(self, tokens: Sequence[int]) -> int:
        self._translate(tokens)
        return self._translation.target_count(self.decoder.length)

    def _unread(self, tokens: Sequence[int], end: int) -> Sequence[int]:
        return self._translation.draft_tokens[self.decoder.length : self._translation.draft_count(end)]

    def _translate(self, tokens: Sequence[int]) -> bool:
        """Translate the text, and shorten the cache to its common prefix; return whether drafting is possible."""
        known, decoder = self._translation, self.decoder
        new = tokens[self._first + len(known.tokens) :]
        if not new:
            return self._is_whole and bool(known.draft_tokens)
        self._is_whole = known.extend(new)
        if len(known.draft_tokens) + AT_ONCE > decoder.capacity:
            window = len(known.tokens) * decoder.capacity // (2 * len(known.draft_tokens))
            self._restart(len(tokens) - max(window, 1))
            self._is_whole = known.extend(tokens[self._first :])
        stands = common_prefix_length(
            decoder.tokens, (start := min(known.stable, decoder.length)), known.draft_tokens[start:]
        )
        # Leave at least one token to decode, because a draft needs the row after the last token.
        decoder.rewind(max(min(stands, len(known.draft_tokens) - 1), 0))
        return self._is_whole and bool(known.draft_tokens)

    def _output_tokens(self, row: Row) -> Candidates:
        """Return the largest logits of a draft model's row, only of shared tokens, with the target's ids."""
        if isinstance(row, Candidates):
            known = [
                (i, self._tokens[word]) for i, word in enumerate(row.ids.tolist()) if word in self._tokens
            ]
            return Candidates(
                np.array([token for _, token in known], np.int32), row.logits[[i for i, _ in known]]
            )
        at, logits = largest(row[self._draft_ids], SPARE)
        return Candidates(self._target_ids[at], logits)

    def _restart(self, first: int) -> None:
        super()._restart(first)
        self._translation.clear()
