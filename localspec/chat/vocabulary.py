"""What chat needs of a model's vocabulary: text to tokens, tokens to bytes, and which tokens are special."""

from collections.abc import Mapping
from typing import Protocol


class Vocabulary(Protocol):
    """Satisfied by a GGUF's vocabulary and by the toys of the tests."""

    @property
    def size(self) -> int:
        """How many tokens there are."""

    @property
    def bos(self) -> int | None:
        """The token that begins a text; None where the model has none."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text; None where the model has none."""

    @property
    def add_bos(self) -> bool:
        """Whether the model wants bos in front of every prompt."""

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Tokens of a text; `parse_special` reads control texts as such, `add_special` adds bos and eos."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, possibly part of a character; b"" for control tokens."""

    def text(self, token: int) -> str:
        """The token's name in the model file, for example "<|im_end|>"."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a reply."""

    def is_control(self, token: int) -> bool:
        """Whether the token steers the model and stands for no text."""

    def control_texts(self) -> Mapping[str, int]:
        """Every text that tokenize(parse_special=True) turns into one token, with that token."""
