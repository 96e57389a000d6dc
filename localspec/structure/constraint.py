"""A grammar's place in a reply: what may come next, what must, and back again after a rejection."""

import json
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from localspec.algorithm.protocols import Vocabulary
from localspec.errors import BadSetting
from localspec.sampler.passes import Candidates, Continued, Row, standing
from localspec.structure.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

_SENTINEL = "\x02"  # a byte that no text begins with and no token merges with
_STACK_BYTES = 256 * 2**20  # llguidance compiles by recursion; the system hands out what is touched
_T = TypeVar("_T")


class GrammarTokens:
    """A model's vocabulary prepared for grammars: about a second for 150,000 tokens, so made once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.size = vocabulary.size
        self.ends = [token for token in range(vocabulary.size) if vocabulary.is_end(token)]
        if not self.ends:
            raise BadSetting(
                "the model has no token that ends a reply, so a grammar could not end one",
                hint="run it without a grammar",
            )
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokenizer(vocabulary, self.ends[0])), n_vocab=self.size, eos_token=self.ends
        )

    def matcher(self, grammar: Grammar, lead: str | None = None) -> "LLMatcher":
        """A matcher at the beginning of a reply; BadSetting for a grammar that cannot be used.

        `lead`: rules of Lark's that define `lead` and `tail`, what may stand around the answer.
        """
        from llguidance import LLMatcher, LLParserLimits

        parts = [dict(grammar.definition)]
        if lead is not None:
            parts = [{"lark_grammar": f"start: lead @answer tail\n{lead}"}, {"name": "answer", **parts[0]}]
        text = json.dumps({"grammars": parts})
        limits = LLParserLimits(verbose_errors=False)
        matcher = on_deep_stack(lambda: LLMatcher(self._tokenizer, text, log_level=0, limits=limits))
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise BadSetting(
                f"{grammar.name} cannot be used: {first_sentence(matcher.get_error())}",
                hint="correct it, or leave that part out",
            )
        return matcher


class _Tokenizer:
    """What llguidance asks of a tokeniser: all tokens' bytes, and the tokens of a text inside a reply."""

    def __init__(self, vocabulary: Vocabulary, end: int) -> None:
        self._vocabulary = vocabulary
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        self.eos_token_id = vocabulary.eos if vocabulary.eos is not None else end
        self.bos_token_id = vocabulary.bos
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.tokens = [piece or vocabulary.text(token).encode() for token, piece in enumerate(pieces)]
        # Where a space is put before a text, the text is made to continue another one.
        spaced = prefixes_space(vocabulary)
        self._before = vocabulary.tokenize(_SENTINEL, parse_special=False) if spaced else []

    def __call__(self, text: bytes | str) -> list[int]:
        text = text if isinstance(text, str) else text.decode()
        if not self._before:
            return self._vocabulary.tokenize(text, parse_special=False)
        tokens = self._vocabulary.tokenize(_SENTINEL + text, parse_special=False)
        assert tokens[: len(self._before)] == self._before, "the sentinel stays by itself"
        return tokens[len(self._before) :]


def prefixes_space(vocabulary: Vocabulary) -> bool:
    """Whether tokenising puts a space before the first word, as SentencePiece does."""
    tokens = vocabulary.tokenize("a", parse_special=False)
    return b"".join(map(vocabulary.piece, tokens)).startswith(b" ")


def first_sentence(error: str) -> str:
    """The heart of llguidance's message, which may quote the whole grammar."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "NoExtension")
    line = line.removeprefix("error: ")
    if line.startswith("NoExtension"):
        return "it matches no text"
    return line if len(line) <= 200 else f"{line[:200]}..."


def on_deep_stack(work: Callable[[], _T]) -> _T:
    """The result of work that may recurse deeply in C."""
    results: list[_T] = []
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return results[0]


FEW = 1024  # permitted tokens that are gathered from a row instead of being masked in a copy of it
_ADDED = np.array([-np.inf, 0.0], np.float32)  # to logits: of a token that may not come, of one that may


@dataclass(frozen=True, slots=True)
class Mask:
    """The tokens that may come next."""

    allowed: np.ndarray  # bool [vocab]
    ids: np.ndarray | None  # int64 [n] ascending, where they are few

    def applied(self, row: Row) -> Row:
        """The row without the others; a draft's row may lack tokens, or be a little longer than the vocabulary.

        One that has none of those that may come stays as it is: whatever is drawn from it is rejected.
        """
        if isinstance(row, Candidates):
            known = row.ids[row.ids < len(self.allowed)]
            kept = np.isin(row.ids, known[self.allowed[known]])
            return Candidates(row.ids[kept], row.logits[kept]) if kept.any() else row
        if self.ids is not None:
            ids = self.ids[self.ids < len(row)] if len(row) < len(self.allowed) else self.ids
            return Candidates(ids, row[ids]) if len(ids) else row
        size = min(len(row), len(self.allowed))
        # A sum has no branch to guess: at worst a sixth of the time of `where`.
        masked = np.append(_ADDED.take(self.allowed[:size].view(np.int8)), _ADDED[:1].repeat(len(row) - size))
        masked[:size] += row[:size]
        return masked


class Constrained:
    """A matcher that follows a reply: it gets whole texts and steps forward or back to them.

    Masks are kept for what may still be taken back: those that the draft needed serve the target as well.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        name: str,
        *,
        size: int,
        ends: Collection[int],
        start: int,
        ignored: str = "",
    ) -> None:
        """`name`: what messages call the grammar; `size`, `ends`: the vocabulary's; `start`: of the reply.

        `ignored`: a sentence, if the matcher follows only a part of a schema.
        """
        self.name = name
        self.ignored = ignored
        self._matcher = matcher
        self._size = size
        self._ends = ends
        self._start = start
        self._tokens: list[int] = []  # of the reply, as far as the matcher has followed it
        self._masks: list[Mask | None] = [None]  # after 0, 1, 2, ... of them
        self._ended = False  # the last of them is an end
        self._settled = 0  # how many of them no rejection can take back

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        """A row without the tokens that may not follow `history`, or as it is where `history` is outside."""
        mask = self._mask_after(history)
        return mask.applied(row) if mask else row

    def forced(self, history: Sequence[int]) -> list[int]:
        """The tokens that must follow `history`, one after the other."""
        inside = self._moved_to(history) and not self._ended
        return self._matcher.compute_ff_tokens() if inside else []

    def valid(self, history: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of the tokens may follow `history`, counted from the first."""
        self._moved_to(Continued(history, tokens))
        return self._start + len(self._tokens) - len(history)

    def settle(self, tokens: Sequence[int]) -> None:
        """Take `tokens` as the text so far, which will not become shorter, and drop the masks of its tokens."""
        self._moved_to(tokens)
        before, self._settled = self._settled, len(self._tokens)
        self._masks[before : self._settled] = [None] * (self._settled - before)

    @property
    def complete(self) -> bool:
        """Whether the text so far, an end left out, is one that the grammar accepts."""
        return self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        """Whether nothing but an end can follow."""
        return self._matcher.is_stopped()

    def _mask_after(self, history: Sequence[int]) -> Mask | None:
        """The mask after a text; None after an end, and where the grammar does not accept the last tokens."""
        wanted, followed = self._since_settled(history)
        here = self._settled + len(wanted)
        known = self._masks[here] if standing(wanted, 0, followed) == len(wanted) else None
        if known is None and self._moved_to(history) and not self._ended:
            known = self._masks[here] = self._mask()
        return known

    def _since_settled(self, history: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """The part that can differ, of a text and of what the matcher has followed."""
        return history[self._start + self._settled :], self._tokens[self._settled :]

    def _moved_to(self, history: Sequence[int]) -> bool:
        """Bring the matcher to a text; False where the grammar does not accept the text's last tokens."""
        wanted, followed = self._since_settled(history)
        same = standing(wanted, 0, followed)
        self._step_back(len(followed) - same)
        return self._followed(list(wanted[same:]))

    def _followed(self, tokens: list[int]) -> bool:
        """Follow tokens as far as the grammar accepts them; False where it does not accept all of them."""
        if not tokens or self._ended:
            return not tokens
        end = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        taken = self._matcher.try_consume_tokens(tokens[:end])
        self._check()
        # The matcher is not told about ends: once stopped, some of its calls take them and others do not.
        if taken == end < len(tokens) and self._matcher.is_accepting():
            self._ended = True
            taken += 1
        self._tokens += tokens[:taken]
        self._masks += [None] * taken
        return taken == len(tokens)

    def _step_back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count - self._ended)
            self._ended = False
            del self._tokens[-count:], self._masks[-count:]
            self._check()

    def _mask(self) -> Mask:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=self._size, bitorder="little").view(bool)
        few = np.count_nonzero(allowed) <= FEW
        return Mask(allowed, np.flatnonzero(allowed) if few else None)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BadSetting(
                f"{self.name} failed after {len(self._tokens)} tokens: "
                f"{first_sentence(self._matcher.get_error())}",
                hint="a simpler one may do",
            )
