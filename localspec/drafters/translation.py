"""A text of the target's tokens in those of another vocabulary, kept up to date as the text grows.

Only the end is tokenised anew: from the last word but one on, where both vocabularies have a token beginning.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

LOOK_BACK = 48  # tokens in which a word has to begin; without one any common beginning will do


class Vocabulary(Protocol):
    """What a translation asks of a vocabulary."""

    @property
    def bos(self) -> int | None: ...

    @property
    def add_bos(self) -> bool: ...

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...

    def is_control(self, token: int) -> bool: ...


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
        self._reach: list[int] = []  # words that it takes to say all up to each token; it never falls
        self._whole: list[bool] = []  # whether a word ends where the token does

    def cut(self, count: int) -> None:
        """At most the first `count` tokens are the text still; `words` are those of the longer one until `extend`."""
        if count < len(self.tokens):
            self._keep(max(count - 1, 0))

    def clear(self) -> None:
        """Begin with an empty text."""
        self._keep(0)
        self.words.clear()

    def said(self, words: int) -> int:
        """How many tokens are said by so many words."""
        return bisect_right(self._reach, words)

    def reach(self, count: int) -> int:
        """How many words say the first `count` tokens."""
        return self._reach[count - 1] if count else 0

    def extend(self, tokens: Sequence[int]) -> bool:
        """Go on with these tokens; False where the text ends inside a character, of which nothing is said yet."""
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
        """Up to which token the translation stands whatever follows."""
        count = len(self.tokens)
        for i in range(count - 1, max(count - LOOK_BACK, 0), -1):
            if self._whole[i - 1] and (self._begins_word(i) or self._target.is_control(self.tokens[i - 1])):
                return i
        return next((i for i in range(count - LOOK_BACK // 2, 0, -1) if self._whole[i - 1]), 0)

    def _begins_word(self, i: int) -> bool:
        before, piece = self._target.piece(self.tokens[i - 1]), self._target.piece(self.tokens[i])
        return piece.startswith(b" ") and not before[-1:].isspace() and bool(piece.strip())

    def _say_control(self, token: int) -> None:
        """By the draft's own token of that meaning; without one it is passed over."""
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
