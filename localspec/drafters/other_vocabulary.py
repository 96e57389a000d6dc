"""Drafts with a model of another vocabulary, restricted to the tokens that it shares with the target.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, algorithm 4): q is the draft's distribution without the
tokens that the target lacks, so it is one over the target's tokens, and every rule of verification holds as it stands.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from localspec.algorithm.protocols import Decoder, Proposal, Rule, Stopping, Vocabulary
from localspec.drafters.model import ModelDrafter, Rows, decode_and_forget, draw, rows_after
from localspec.gguf.matching import SharedTokens
from localspec.sampler.chain import largest
from localspec.sampler.passes import Candidates, Pass, Row, standing

LOOK_BACK = 48  # tokens in which a word must begin; after them any common beginning will do


class Translation:
    """The draft's words for the target's tokens so far."""

    def __init__(self, draft: Vocabulary, target: Vocabulary, shared: Mapping[int, int]) -> None:
        """`shared`: for tokens of the target the draft's token of the same bytes or meaning."""
        self._draft, self._target, self._shared = draft, target, shared
        spaced = b"".join(map(draft.piece, draft.tokenize("a", parse_special=False)))
        self._adds_space = spaced == b" a"
        self.tokens: list[int] = []  # of the target
        self.words: list[int] = []  # of the draft
        self.stable = 0  # words that the latest extension left as they were
        self._reach: list[int] = []  # number of words up to each token; it never falls
        self._whole: list[bool] = []  # whether a word ends where the token does

    def cut(self, count: int) -> None:
        """Keep at most the first `count` tokens of the text; until `extend`, `words` are those of the longer text."""
        if count < len(self.tokens):
            self._keep(max(count - 1, 0))

    def clear(self) -> None:
        """Begin with an empty text."""
        self._keep(0)
        self.words.clear()

    def said(self, words: int) -> int:
        """Number of tokens in the first words."""
        return bisect_right(self._reach, words)

    def reach(self, count: int) -> int:
        """Number of words for the first `count` tokens."""
        return self._reach[count - 1] if count else 0

    def extend(self, tokens: Sequence[int]) -> bool:
        """Add these tokens; False if the text ends inside a character."""
        text = self.tokens[(keep := self._beginning()) :] + list(tokens)
        self._keep(keep)
        self.stable = self.reach(keep) if keep else 0
        del self.words[self.stable :]
        if not keep and self._draft.add_bos and self._draft.bos is not None:
            self.words.append(self._draft.bos)
        is_whole = True
        while text:
            count = next((i for i, token in enumerate(text) if self._target.is_control(token)), len(text))
            is_whole = self._say(text[:count]) if count else True
            for token in text[count : count + 1]:
                self._say_control(token)
                is_whole = True
            text = text[count + 1 :]
        return is_whole

    def _keep(self, count: int) -> None:
        del self.tokens[count:], self._reach[count:], self._whole[count:]

    def _beginning(self) -> int:
        """The token up to which the translation is final."""
        count = len(self.tokens)
        for i in range(count - 1, max(count - LOOK_BACK, 0), -1):
            if self._whole[i - 1] and (self._begins_word(i) or self._target.is_control(self.tokens[i - 1])):
                return i
        return next((i for i in range(count - LOOK_BACK // 2, 0, -1) if self._whole[i - 1]), 0)

    def _begins_word(self, i: int) -> bool:
        before, piece = self._target.piece(self.tokens[i - 1]), self._target.piece(self.tokens[i])
        return piece.startswith(b" ") and not before[-1:].isspace() and bool(piece.strip())

    def _say_control(self, token: int) -> None:
        """Use the draft's own token of that meaning, or skip it."""
        word = self._shared.get(token)
        if word is not None and self.words != [word]:  # bos is there already
            self.words.append(word)
        self._take([token], [len(self.words)], [True])

    def _say(self, tokens: Sequence[int]) -> bool:
        pieces = [self._target.piece(token) for token in tokens]
        text, is_whole = _decoded(b"".join(pieces))
        if self._adds_space and text.startswith(" "):
            text = text[1:]
        words = self._draft.tokenize(text, parse_special=False)
        ends = list(accumulate(map(len, pieces)))
        starts = list(accumulate((len(self._draft.piece(word)) for word in words), initial=0))
        if starts[-1] != ends[-1]:  # bytes that are no text, or a space that the draft puts in front
            ends = [-1] * (len(ends) - 1) + [starts[-1]]
        known = set(starts if is_whole else starts[:-1])
        before = len(self.words)
        self.words += words
        self._take(
            tokens, [before + bisect_left(starts, end) for end in ends], [end in known for end in ends]
        )
        return is_whole

    def _take(self, tokens: Sequence[int], reach: Sequence[int], whole: Sequence[bool]) -> None:
        self.tokens += tokens
        self._reach += reach
        self._whole += whole


def _decoded(raw: bytes) -> tuple[str, bool]:
    """Bytes as text, and whether they do not end inside a character."""
    text = raw.decode("utf-8", "replace")
    if not text.endswith("\ufffd"):
        return text, True
    for cut in range(1, 4):
        try:
            raw[-cut:].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return raw[:-cut].decode("utf-8", "replace"), False
    return text, True


KEPT = 128  # of the largest logits of a row


class OtherVocabularyDrafter(ModelDrafter):
    """Keeps the text in the draft's tokens; after a cycle only its end is translated again."""

    _restarts_with = 4

    def __init__(
        self,
        decoder: Decoder,
        draft: Vocabulary,
        target: Vocabulary,
        shared: SharedTokens,
        is_end: Callable[[int], bool],
    ) -> None:
        """`is_end`: of a token of the target."""
        super().__init__(decoder, is_end)
        self._words = {
            int(token): int(word) for word, token in zip(shared.draft_ids, shared.target_ids, strict=True)
        }
        self._translation = Translation(draft, target, self._words)
        order = shared.target_ids.argsort()
        self._draft_ids, self._target_ids = shared.draft_ids[order], shared.target_ids[order]
        self._tokens = {word: token for token, word in self._words.items()}
        self._is_whole = True  # whether the text does not end inside a character

    def warm_up(self, batches: Sequence[Sequence[int]]) -> None:
        words = len(self._tokens)
        decode_and_forget(
            self.decoder, [[int(self._draft_ids[i % words]) for i in batch] for batch in batches]
        )

    def observe(self, batch: Pass, kept: int) -> None:
        end = batch.start + kept
        if end < self._first:
            self._restart(0)
            return
        before, start = max(self._first - batch.start, 0), max(batch.start - self._first, 0)
        self._translation.cut(standing(self._translation.tokens, start, batch.tokens[before:kept]))

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        if self.failure or not self._translate(tokens):
            return Proposal()
        words = self._translation.words
        if (limit := min(limit, self.decoder.capacity - len(words) + 1)) <= 0:
            return Proposal()
        with self.drafting():
            rows = self._rows(words[self.decoder.length :])
            proposal, self.failure = draw(self, rows, tokens, limit, rule, stopping, self._is_end)
        return proposal

    def _rows(self, unread: Sequence[int]) -> Rows:
        """The draft's tokens as tokens of the target, up to the first that the target lacks."""
        rows = rows_after(self.decoder, unread)
        row = next(rows)
        while len((output_tokens := self._output_tokens(row)).ids):
            row = rows.send(self._words[(yield output_tokens)])

    def _held(self, tokens: Sequence[int]) -> int:
        self._translate(tokens)
        return self._translation.said(self.decoder.length)

    def _unread(self, tokens: Sequence[int], end: int) -> Sequence[int]:
        return self._translation.words[self.decoder.length : self._translation.reach(end)]

    def _translate(self, tokens: Sequence[int]) -> bool:
        """Translate the text and keep the matching prefix of the cache; whether anything is left to draft from."""
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

    def _output_tokens(self, row: Row) -> Candidates:
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
        super()._restart(first)
        self._translation.clear()
