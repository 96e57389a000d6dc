"""A model's vocabulary: text to tokens, tokens to bytes."""

import ctypes
from typing import Any

from localspec.errors import BackendFailure
from localspec.llama.library import lib, text_of

_TYPES = {0: "none", 1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv", 6: "plamo2"}
_UNKNOWN, _CONTROL, _USER_DEFINED = 1, 8, 16  # enum llama_token_attr
_SPECIAL = _UNKNOWN | _CONTROL | _USER_DEFINED  # what tokenising with parse_special recognises in text


class Vocab:
    """A `Vocabulary` of the loop. Lives as long as its model; a call after the model closed is a bug of the caller."""

    def __init__(self, pointer: Any) -> None:  # noqa: ANN401  a C pointer
        self._vocab = pointer
        self.size: int = lib.llama_vocab_n_tokens(pointer)
        self.type: str = _TYPES.get(lib.llama_vocab_type(pointer), "unknown")
        self.bos = self._optional(lib.llama_vocab_bos(pointer))
        self.eos = self._optional(lib.llama_vocab_eos(pointer))
        self.add_bos = bool(lib.llama_vocab_get_add_bos(pointer))
        self._pieces: dict[int, bytes] = {}
        self._control_texts: dict[str, int] | None = None

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """`parse_special` turns control texts into control tokens, so it must be False for untrusted text."""
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 4
        while True:
            tokens = (ctypes.c_int32 * room)()
            count = lib.llama_tokenize(self._vocab, raw, len(raw), tokens, room, add_special, parse_special)
            if count >= 0:
                return tokens[:count]
            if count == -(2**31):
                raise BackendFailure("the text is too long to tokenise", hint="send it in parts")
            room = -count

    def piece(self, token: int) -> bytes:
        try:
            return self._pieces[token]
        except KeyError:
            return self._pieces.setdefault(token, self._piece(token))

    def text(self, token: int) -> str:
        self._check(token)
        return text_of(lib.llama_vocab_get_text(self._vocab, token))

    def is_end(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def is_control(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_control(self._vocab, token))

    def control_texts(self) -> dict[str, int]:
        if self._control_texts is None:
            attributes = lib.llama_vocab_get_attr
            special = (i for i in range(self.size) if attributes(self._vocab, i) & _SPECIAL)
            self._control_texts = {self.text(token): token for token in special}
        return self._control_texts

    def _piece(self, token: int) -> bytes:
        self._check(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def _check(self, token: int) -> None:
        assert 0 <= token < self.size, f"token {token} of a vocabulary of {self.size}"

    def _optional(self, token: int) -> int | None:
        return token if 0 <= token < self.size else None
