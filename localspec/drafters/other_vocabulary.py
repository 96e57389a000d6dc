"""Drafts with a model of another vocabulary, restricted to the tokens that it shares with the target.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, algorithm 4): q is the draft's distribution without the
tokens that the target lacks, so it is one over the target's tokens, and every rule of verification holds as it stands.
"""

from collections.abc import Callable, Sequence

import numpy as np

from localspec.algorithm.protocols import Decoder, Proposal, Reading, Rule, Stopping
from localspec.drafters.drawing import FAILURES, Rows, draw
from localspec.drafters.model import AT_ONCE, ROOM, rehearse, rows_after
from localspec.drafters.translation import Translation, Vocabulary
from localspec.errors import LocalspecError
from localspec.events import Source
from localspec.gguf.shared_tokens import SharedTokens
from localspec.passes import Candidates, Pass, Row, standing
from localspec.sampler.candidates import largest

KEPT = 128  # of the largest logits of a row


class OtherVocabularyDrafter:
    """Keeps the text in the draft's own words; after a cycle only its end is put into words anew."""

    source = Source.MODEL
    wants = None

    def __init__(
        self,
        decoder: Decoder,
        draft: Vocabulary,
        target: Vocabulary,
        shared: SharedTokens,
        is_end: Callable[[int], bool],
    ) -> None:
        """`is_end`: of a token of the target."""
        self.decoder = decoder
        self._is_end = is_end
        self._words = {
            int(token): int(word) for word, token in zip(shared.draft_ids, shared.target_ids, strict=True)
        }
        self._translation = Translation(draft, target, self._words)
        order = shared.target_ids.argsort()
        self._draft_ids, self._target_ids = shared.draft_ids[order], shared.target_ids[order]
        self._tokens = {word: token for token, word in self._words.items()}
        self._room = min(ROOM, decoder.capacity // 4)
        self._first = 0  # the text's position of the first token that is translated
        self._is_whole = True  # whether the text does not end inside a character
        self.failure: LocalspecError | None = None

    @property
    def busy_seconds(self) -> float:
        return self.decoder.busy_seconds

    def steps(self, depth: int) -> int:
        return depth

    def rehearse(self, batches: Sequence[Sequence[int]]) -> None:
        words = len(self._tokens)
        rehearse(self.decoder, [[int(self._draft_ids[i % words]) for i in batch] for batch in batches])

    def begin(self) -> None:
        self.failure = None

    def follow(self, passed: Pass, kept: int) -> None:
        end = passed.start + kept
        if end < self._first:
            self._restart(0)
            return
        before, start = max(self._first - passed.start, 0), max(passed.start - self._first, 0)
        self._translation.cut(standing(self._translation.tokens, start, passed.tokens[before:kept]))

    def reading(self, tokens: Sequence[int]) -> Reading:
        self._translate(tokens)
        held = self._held
        unread = 0 if self.failure else max(len(tokens) - 1 - self._first - held, 0)
        spare = self.decoder.capacity // 4 - held - unread
        return Reading(unread if unread > AT_ONCE else 0, held, min(self._first, max(spare, 0)))

    def read(self, tokens: Sequence[int], most: int) -> int:
        self._translate(tokens)
        held = self._held
        count = min(most, len(tokens) - 1 - self._first - held)
        try:
            words = self._translation.words[: self._translation.reach(held + count)]
            self.decoder.decode(words[self.decoder.length :], rows=0)
            self.decoder.checkpoint(lasting=True)
        except FAILURES as error:
            self.failure = error
        return count

    def restart(self, tokens: Sequence[int], window: int) -> None:
        self._restart(max(len(tokens) - 1 - window, 0))

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        if self.failure or not self._translate(tokens):
            return Proposal()
        words = self._translation.words
        if (limit := min(limit, self.decoder.capacity - len(words) + 1)) <= 0:
            return Proposal()
        rows = self._rows(words[self.decoder.length :])
        proposal, self.failure = draw(self, rows, tokens, limit, rule, stopping, self._is_end)
        return proposal

    def _rows(self, unread: Sequence[int]) -> Rows:
        """In tokens of the target, as far as it has any of those that the draft would say."""
        rows = rows_after(self.decoder, unread)
        row = next(rows)
        while len((spoken := self._spoken(row)).ids):
            row = rows.send(self._words[(yield spoken)])

    @property
    def _held(self) -> int:
        """Tokens of the text from `_first` on whose words are in the cache."""
        return self._translation.said(self.decoder.length)

    def _translate(self, tokens: Sequence[int]) -> bool:
        """Put the text into words and keep of the cache what still stands; whether there is something to go on from."""
        known, decoder = self._translation, self.decoder
        new = tokens[self._first + len(known.tokens) :]
        if not new:
            return self._is_whole and bool(known.words)
        self._is_whole = known.extend(new)
        if len(known.words) + self._room > decoder.capacity:
            window = len(known.tokens) * decoder.capacity // (2 * len(known.words))
            self._restart(len(tokens) - max(window, 1))
            self._is_whole = known.extend(tokens[self._first :])
        stands = standing(decoder.tokens, (start := min(known.stable, decoder.length)), known.words[start:])
        decoder.rewind(max(min(stands, len(known.words) - 1), 0))  # a row needs a word that is decoded
        return self._is_whole and bool(known.words)

    def _spoken(self, row: Row) -> Candidates:
        """The largest logits of a row, as tokens of the target."""
        if isinstance(row, Candidates):
            known = [
                (i, self._tokens[word]) for i, word in enumerate(row.ids.tolist()) if word in self._tokens
            ]
            return Candidates(
                np.array([token for _, token in known], np.int32), row.logits[[i for i, _ in known]]
            )
        at, logits = largest(row[self._draft_ids], KEPT)
        return Candidates(self._target_ids[at], logits)

    def _restart(self, first: int) -> None:
        """Begin with an empty cache at this position of the text."""
        self.decoder.rollback(0)
        self._translation.clear()
        self._first = first
