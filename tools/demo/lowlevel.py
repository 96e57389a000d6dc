"""What the tools ask of a model file: the tokens of a text, logits, and the greedy answer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.llama import model
from localspec.llama.context import Context


class Model:
    """One model with one context on the CPU; `exact` keeps its cache in single precision."""

    def __init__(self, path: Path, context: int = 1024, threads: int = 1, exact: bool = False) -> None:
        self._model = model.Model(path, gpu_layers=0)
        cache = {"kv_type": "f32", "flash_attn": "off"} if exact else {}
        self._context = Context(
            self._model, length=context, threads=threads, batch_size=context, rows_max=context, **cache
        )

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self._model.close()

    def tokens(self, text: str) -> list[int]:
        """Cut text as llama.cpp does."""
        return self._model.vocab.tokenize(text, parse_special=True)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Read a text and return a row of logits for each token."""
        self._context.rollback(0)
        return np.stack(self._context.decode(tokens, rows=len(tokens)).rows)

    def greedy(self, prompt: str, limit: int = 200) -> str:
        """The most likely answer to a prompt."""
        self._context.rollback(0)
        read, found = self.tokens(prompt), list[int]()
        while len(found) < limit:
            (row,) = self._context.decode(read, rows=1).rows
            if self._model.vocab.is_end(token := int(row.argmax())):
                break
            found.append(token)
            read = [token]
        return b"".join(map(self._model.vocab.piece, found)).decode(errors="replace")
