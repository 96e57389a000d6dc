"""A vocabulary in which every character is a token, and any control texts, found in llama.cpp's order."""

from collections.abc import Sequence

from localspec.prompt.tokens import SpecialTokens

FIRST_CONTROL = 0x110000  # beyond every character
FIRST_BYTE = 0x200000


class CharacterVocabulary:
    """`controls` are control tokens, `words` are user-defined ones: they are found in plain text as well."""

    def __init__(
        self,
        controls: Sequence[str] = ("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
        *,
        words: Sequence[str] = (),
        add_bos: bool = False,
        space_prefix: bool = False,
    ):
        self._names = [*controls, *words]
        self._controls = len(controls)
        self._texts = {text: FIRST_CONTROL + i for i, text in enumerate(self._names)}
        self._space = " " if space_prefix else ""
        self.bos: int | None = FIRST_CONTROL
        self.eos: int | None = FIRST_CONTROL + 1
        self.add_bos = add_bos
        self.size = FIRST_BYTE + 256

    def tokenize(self, text, *, parse_special, add_special=False):
        found = [t for t in self._texts if parse_special or not self.is_special(self._texts[t])]
        tokens, done = [self.bos] if add_special and self.add_bos else [], 0
        for start, end in SpecialTokens({t: self._texts[t] for t in found}).spans(text):
            tokens += [*self._plain(text[done:start]), self._texts[text[start:end]]]
            done = end
        return [*tokens, *self._plain(text[done:])]

    def _plain(self, text):
        return [ord(c) for c in self._space + text] if text else []

    def piece(self, token):
        if token >= FIRST_BYTE:
            return bytes([token - FIRST_BYTE])
        if token >= FIRST_CONTROL:
            return b"" if self.is_special(token) else self.text(token).encode()
        return chr(token).encode()

    def text(self, token):
        return self._names[token - FIRST_CONTROL] if token >= FIRST_CONTROL else chr(token)

    def is_end(self, token):
        return token == self.eos

    def is_special(self, token):
        return 0 <= token - FIRST_CONTROL < self._controls

    def special_tokens(self):
        return self._texts


def byte_tokens(raw: bytes) -> list[int]:
    return [FIRST_BYTE + byte for byte in raw]
