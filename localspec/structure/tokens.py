"""A vocabulary as llguidance knows it, and grammars compiled for it."""

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from localspec.errors import BadSetting
from localspec.structure.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

_SENTINEL = "\x02"  # a byte that no text begins with and no token merges with
_STACK_BYTES = 256 * 2**20  # llguidance compiles by recursion; the system hands out what is touched
_T = TypeVar("_T")


class TokenVocabulary(Protocol):
    """What a grammar needs of a vocabulary."""

    @property
    def size(self) -> int: ...

    @property
    def eos(self) -> int | None: ...

    @property
    def bos(self) -> int | None: ...

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...

    def text(self, token: int) -> str: ...

    def is_end(self, token: int) -> bool: ...


class GrammarTokens:
    """A model's vocabulary prepared for grammars: about a second for 150,000 tokens, so made once."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
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
                hint="leave out look-ahead, and in schemas `not`, `if`, `uniqueItems` and other documents",
            )
        return matcher


class _Tokenizer:
    """What llguidance asks of a tokeniser: all tokens' bytes, and the tokens of a text inside a reply."""

    def __init__(self, vocabulary: TokenVocabulary, end: int) -> None:
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


def prefixes_space(vocabulary: TokenVocabulary) -> bool:
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
