"""Follow a reply with a grammar: find the tokens that may or must come next, and step back after a rejection."""

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from localspec.algorithm.protocols import Vocabulary
from localspec.errors import BadSetting
from localspec.files import after_fork
from localspec.sampler.passes import Candidates, Continued, Row, common_prefix_length
from localspec.structure.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_SENTINEL = "\x02"  # a character with which no text begins, and which is always a token by itself
_TAG = re.compile(rb"<[^<>]+>|\[[^\[\]]+\]")
_OPENING = re.compile(rb"[ \n]*[\[{`]+")  # a token that opens JSON lists, objects or a code fence
_resizing = threading.Lock()  # locked while new threads get a larger stack


@after_fork
def _forget() -> None:
    global _resizing
    _resizing = threading.Lock()


_T = TypeVar("_T")


class GrammarTokens:
    """A vocabulary prepared for grammars. To prepare 150,000 tokens takes about a second."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.size = vocabulary.size
        self.ends = [token for token in range(vocabulary.size) if vocabulary.is_end(token)]
        if not self.ends:
            what = "the model has no token that ends a reply, which a grammar needs"
            raise BadSetting(what, hint="use this model without a grammar")
        # Tokens of whole tags such as </tool_call>: a model always writes these tags with one token.
        pieces = ((token, vocabulary.piece(token)) for token in vocabulary.special_tokens().values())
        self.tags = {token: piece for token, piece in pieces if _TAG.fullmatch(piece)}
        own = _Tokenizer(vocabulary, self.ends[0])
        self.closing = [token for sign in '"]}\n ,:0' for token in own(sign)]  # the preferred token first
        self.pieces = own.tokens
        self.firsts = np.array([(piece or b"\0")[0] for piece in self.pieces], np.uint8)
        self.opening = np.array([bool(_OPENING.fullmatch(piece)) for piece in self.pieces])
        self._tokenizer = LLTokenizer(TokenizerWrapper(own), n_vocab=self.size, eos_token=self.ends)

    def matcher(self, grammar: Grammar, around: str | None = None) -> "LLMatcher":
        """Compile the grammar of an answer; `around`: the Lark rules that `rules_around` returns. Raises BadSetting."""
        rules = [grammar.rules] if around is None else [around, grammar.rules]
        if around is not None and grammar.has_unclosed_calls:
            rules = [around + grammar.rules.replace("start:", "reply:", 1)]
        matcher = _compiled(self._tokenizer, *rules)
        if matcher.is_error():
            what = f"{grammar.name} cannot be used: {first_sentence(matcher.get_error())}"
            raise BadSetting(what, hint=f"correct {grammar.name}, or leave that part out")
        return matcher


class MiddleTokenizer:
    """A tokeniser for a text in the middle of a reply, not at its beginning."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Some vocabularies put a space before a text. After a sentinel, the text is tokenised without this space.
        spaced = prefixes_space(vocabulary)
        self._before = vocabulary.tokenize(_SENTINEL, parse_special=False) if spaced else []

    def __call__(self, text: bytes | str, *, parse_special: bool = False) -> list[int]:
        text = _SENTINEL * bool(self._before) + (text if isinstance(text, str) else text.decode())
        tokens = self._vocabulary.tokenize(text, parse_special=parse_special)
        assert tokens[: len(self._before)] == self._before, "the sentinel stays by itself"
        return tokens[len(self._before) :]


class _Tokenizer(MiddleTokenizer):  # for llguidance
    def __init__(self, vocabulary: Vocabulary, end: int) -> None:
        super().__init__(vocabulary)
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        self.eos_token_id = vocabulary.eos if vocabulary.eos is not None else end
        self.bos_token_id = vocabulary.bos
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.tokens = [piece or vocabulary.text(token).encode() for token, piece in enumerate(pieces)]


def prefixes_space(vocabulary: Vocabulary) -> bool:
    """Return whether the vocabulary puts a space before the first word of a text, as SentencePiece does."""
    tokens = vocabulary.tokenize("a", parse_special=False)
    return b"".join(map(vocabulary.piece, tokens)).startswith(b" ")


def first_sentence(error: str) -> str:
    """Return the main line of llguidance's message; the rest may quote the whole grammar."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "NoExtension")
    line = line.removeprefix("error: ").rpartition("failed to compile JSON schema: ")[2]
    if line.startswith("NoExtension"):
        return "it matches no text"
    return line if len(line) <= 200 else f"{line[:200]}..."


def on_deep_stack(work: Callable[[], _T]) -> _T:
    """Run `work` in a thread with a large stack, because deep recursion in C needs one; return the result."""
    results: list[_T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    with _resizing:
        before = threading.stack_size(256 * 2**20)  # free, because unused pages of a stack take no memory
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return results[0]


def _compiled(tokenizer: "LLTokenizer", *rules: str) -> "LLMatcher":
    """Compile sets of Lark rules; the first set may refer to the second as `answer`."""
    from llguidance import LLMatcher, LLParserLimits

    grammars = [{"name": n * "answer", "lark_grammar": each} for n, each in enumerate(rules)]
    text, limits = json.dumps({"grammars": grammars}), LLParserLimits(verbose_errors=False)
    matcher = on_deep_stack(lambda: LLMatcher(tokenizer, text, log_level=0, limits=limits))
    if not matcher.is_error():
        matcher.compute_bitmask()  # the mask is computed only to find errors that compiling does not find
    return matcher


def byte_matcher(rules: str) -> "LLMatcher":
    """Compile Lark rules for texts as bytes."""
    return _compiled(_bytes(), rules)


@cache
def _bytes() -> "LLTokenizer":
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


SPARE = 8  # the next token may make the shortest end this many tokens longer
NEAR = 64  # a short end is sought when at most this many tokens and a quarter of the limit are left
FEW = 1024  # if at most this many tokens are allowed, only their logits are kept
_ADDED = np.array([-np.inf, 0.0], np.float32)  # added to the logits of forbidden and of allowed tokens


@dataclass(frozen=True, slots=True)
class Mask:
    allowed: np.ndarray  # bool [vocab]
    ids: np.ndarray | None  # int64 [n]: the allowed tokens, ascending; None for more than FEW tokens
    closes: bool = False  # whether the limit of tokens, not the grammar, made the mask this narrow

    def applied(self, row: Row) -> Row:
        """Return the row with only the allowed tokens. A draft's row may be shorter or longer than the vocabulary.

        A row without an allowed token is returned unchanged: the target rejects the draft tokens drawn from it.
        """
        if isinstance(row, Candidates):
            kept = self.allowed.take(row.ids, mode="clip") & (row.ids < len(self.allowed))
            if kept.any():
                return Candidates(row.ids[kept], row.logits[kept])
            return self.applied(row.whole()) if row.whole else row
        if self.ids is not None:
            ids = self.ids[self.ids < len(row)] if len(row) < len(self.allowed) else self.ids
            return Candidates(ids, row[ids]) if len(ids) else row
        size = min(len(row), len(self.allowed))
        # A sum has no branches, so it is up to six times faster than `np.where`.
        masked = np.append(_ADDED.take(self.allowed[:size].view(np.int8)), _ADDED[:1].repeat(len(row) - size))
        masked[:size] += row[:size]
        return masked


class Constrained:
    """A grammar that follows a reply. Methods with a `history` move the matcher to the end of `history`.

    Masks after draft tokens are kept, because the target uses the masks that were computed for the draft.
    """

    whole_rows = True

    def __init__(
        self,
        matcher: "LLMatcher",
        name: str,
        tokens: GrammarTokens,
        *,
        start: int,
        ignored: str = "",
        closes: bool = False,
    ) -> None:
        """`start`: number of tokens before the reply; `ignored`: a notice about ignored parts of a schema.

        `closes`: whether the rules are those of JSON: a short end is forced when the reply comes near its `limit`.
        """
        self.name, self.ignored = name, ignored
        self._matcher, self._size, self._ends, self._start = matcher, tokens.size, tokens.ends, start
        self._tags, self._tag_ids = tokens.tags, np.array([*tokens.tags], np.int64)
        self._tokens: list[int] = []  # the reply's tokens that the matcher has followed
        self._masks: list[Mask | None] = [None]  # masks after the first 0, 1, 2, ... of `_tokens`
        self._ended = False  # whether the last of `_tokens` ends the reply
        self._settled = 0  # number of `_tokens` that no rejection can remove
        self._vocabulary, self._closing = tokens, tokens.closing
        self._closes = closes
        self.limit = 0  # largest number of tokens in the reply; 0: unknown
        self.closed = False  # whether any settled token was forced by the limit

    def allows(self, token: int, history: Sequence[int]) -> bool:
        mask = self.mask(history)
        return mask is None or (token < len(mask.allowed) and bool(mask.allowed[token]))

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        """Mask the tokens that may not follow `history`; if the grammar does not match `history`, mask none."""
        mask = self.mask(history)
        return mask.applied(row) if mask else row

    def mask(self, history: Sequence[int]) -> Mask | None:
        """Return the mask of the tokens that may follow `history`; None if `history` does not match the grammar."""
        wanted, followed = self._since_settled(history)
        here = self._settled + len(wanted)
        mask = self._masks[here] if common_prefix_length(wanted, 0, followed) == len(wanted) else None
        if mask is None and self._moved_to(history) and not self._ended:
            mask = self._masks[here] = self._mask()
        return mask

    def forced(self, history: Sequence[int]) -> list[int]:
        inside = self._moved_to(history) and not self._ended
        return self._matcher.compute_ff_tokens() if inside else []

    def valid(self, history: Sequence[int], tokens: Sequence[int]) -> int:
        """Return the length of the longest prefix of `tokens` that may follow `history`."""
        self._moved_to(Continued(history, tokens))
        return self._start + len(self._tokens) - len(history)

    def settle(self, tokens: Sequence[int]) -> None:
        """Move the matcher to the end of `tokens`, which no rejection can remove, and drop their masks."""
        self._moved_to(tokens)
        before, self._settled = self._settled, len(self._tokens)
        self.closed |= any(mask and mask.closes for mask in self._masks[before : self._settled])
        self._masks[before : self._settled] = [None] * (self._settled - before)

    @property
    def complete(self) -> bool:
        """Whether the grammar allows the reply to end here."""
        return self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        """Whether the grammar allows nothing but an end token here."""
        return self._matcher.is_stopped()

    def _since_settled(self, history: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        return history[self._start + self._settled :], self._tokens[self._settled :]

    def _moved_to(self, history: Sequence[int]) -> bool:
        """Move the matcher to the end of `history`; return False if the grammar does not accept the whole text."""
        wanted, followed = self._since_settled(history)
        same = common_prefix_length(wanted, 0, followed)
        if count := len(followed) - same:
            self._matcher.rollback(count - self._ended)
            self._ended = False
            del self._tokens[-count:], self._masks[-count:]
            self._check()
        tokens = list(wanted[same:])
        if not tokens or self._ended:
            return not tokens
        end = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        taken = self._matcher.try_consume_tokens(tokens[:end])
        self._check()
        # Never pass an end token to the matcher, because some of its methods fail after one.
        if taken == end < len(tokens) and self._matcher.is_accepting():
            self._ended = True
            taken += 1
        self._tokens += tokens[:taken]
        self._masks += [None] * taken
        return taken == len(tokens)

    def _mask(self) -> Mask:
        allowed = self._allowed(self._matcher)
        self._check()
        if len(ids := self._tag_ids[allowed[self._tag_ids]]):
            forced = self._matcher.compute_ff_bytes()
            if whole := [token for token in ids if forced.startswith(self._tags[token])]:
                allowed = np.isin(np.arange(self._size), whole[:1])
        few = int(np.count_nonzero(allowed)) <= FEW
        if few and self._closes:  # in JSON only, because a user's own grammar is followed exactly
            allowed[self._covered(np.flatnonzero(allowed))] = False
        if closes := (due := self._due()) is not None:
            allowed, few = np.arange(self._size) == due, True
        return Mask(allowed, np.flatnonzero(allowed) if few else None, closes)

    def _allowed(self, matcher: "LLMatcher") -> np.ndarray:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._size, bitorder="little").view(bool)

    def _covered(self, ids: np.ndarray) -> list[int]:
        """Return opening tokens to leave out, such as [, because longer ones, such as [", cover all that may follow.

        The same texts stay possible. Models know [" from texts, and often go wrong after a lone [.
        """
        tokens, covered = self._vocabulary, list[int]()
        opening = ids[tokens.opening[ids]].tolist()
        if opening and self._matcher.compute_ff_tokens():
            return []
        for token in opening:
            (matcher := self._matcher.deep_copy()).consume_tokens([token])
            longer = {tokens.pieces[n][-1] for n in ids if tokens.pieces[n][:-1] == tokens.pieces[token]}
            # A space needs no longer token, because it belongs to the token of the next word.
            if (longer - {ord(" ")}).issuperset(tokens.firsts[self._allowed(matcher)]):
                covered.append(token)
        return covered

    def _due(self) -> int | None:
        """Return the token that must come next so that a short end fits into the limit; None if none must come."""
        room = self.limit - len(self._tokens)
        if not (self._closes and self.limit) or room > NEAR + self.limit // 4 or self._matcher.is_accepting():
            return None
        matcher, end = self._matcher.deep_copy(), list[int]()
        while not matcher.is_accepting() and len(end) < room and not matcher.is_error():
            if not (forced := matcher.compute_ff_tokens()):
                allowed = self._allowed(matcher)
                forced = [next((token for token in self._closing if allowed[token]), int(allowed.argmax()))]
            matcher.consume_tokens(forced)
            end += forced
        return end[0] if matcher.is_accepting() and len(end) <= room <= len(end) + SPARE else None

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = first_sentence(self._matcher.get_error())
            what = f"{self.name} failed after {len(self._tokens)} tokens of the reply: {reason}"
            raise BadSetting(what, hint=f"simplify {self.name}")
