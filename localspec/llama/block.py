"""A prediction head that guesses a whole block in one run (DFlash, DSpark); hidden rows lie in its cache."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from localspec.llama.batch import Batch
from localspec.llama.context import Context
from localspec.llama.head_cache import HeadCache
from localspec.llama.hidden import get_output, rows_at, set_output
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows
from localspec.passes import Candidates, Row

CHUNK = 32  # rows in one call
BLOCK = 16  # tokens, where a file does not say


class BlockContext(HeadCache):
    """A head and its cache: not for two threads at once, nor while its target decodes."""

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        layers: int,
        anchored: bool,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """`layers`: how many of the target's it reads; `options`: those of HeadCache.

        anchored: whether the newest token's own place guesses the first token (DSpark), or the one after it.
        """
        super().__init__(model, target, chunk=CHUNK, rows=CHUNK, predicts=False, **options)
        self._top = int(self._fact("selector_top_k", "0"))
        self._anchored = anchored and self._fact("sample_from_anchor", "true") == "true"
        block = min(int(self._fact("block_size", str(BLOCK))), self.chunk)
        self.most_guesses = block if self._anchored else block - 1
        set_output(self.handle, True, not self._top)
        lib.llama_set_causal_attn(self.handle, self._fact("attention.causal", "false") == "true")
        self._width: int = lib.llama_model_n_embd(model.pointer)
        images = lib.llama_model_rope_type(model.pointer) == lib.LLAMA_ROPE_TYPE_MROPE
        self._hidden = Batch(
            self.chunk, columns=layers * self._width, tokens=False, position_rows=4 if images else 1
        )
        self._block = Batch(self.chunk)
        self._rows = FullRows(model.vocab.size, min(model.vocab.size, target.model.vocab.size))
        self._mask: int = lib.llama_vocab_mask(lib.llama_model_get_vocab(model.pointer))
        self._last_token = model.vocab.size - 1
        model.adopt(self)

    @property
    def most_rows(self) -> int:
        """That one call reads."""
        return self.chunk

    def read(self, hidden: np.ndarray, position: int) -> None:
        """Append the target's hidden rows [rows, columns] of these positions."""
        for begin in range(0, len(hidden), self.most_rows):
            part = hidden[begin : begin + self.most_rows]
            batch = self._hidden.fill((), position + begin, rows=0, embeddings=part)
            self.run(lib.llama_decode, batch, len(part))

    def guess(self, token: int, count: int, position: int) -> Callable[[int, int | None], Row]:
        """Guess the `count` tokens after this one, at most `most_guesses`: the row of a place from 0.

        The row depends on the token that was drawn at the place before. It is valid until the next call.
        """
        block = [min(token, self._last_token)] + [self._mask] * (count - self._anchored)
        self.run(
            lib.llama_decode, self._block.fill(block, position, 0 if self._top else len(block)), len(block)
        )
        first = 0 if self._anchored else 1
        if not self._top:
            rows = self._rows.read(self.handle, len(block))[first:]
            return lambda place, before: rows[place]
        lattice = rows_at(get_output(self.handle), len(block), self._width)
        return partial(_row_of_lattice, lattice[first:], self._top)

    def _fact(self, name: str, default: str) -> str:
        return self.model.metadata.get(f"{self.model.architecture}.{name}", default)


def _row_of_lattice(lattice: np.ndarray, top: int, place: int, before: int | None) -> Row:
    """The row of a place: `top` tokens, and for each of these at the place before their scores."""
    known = 0
    if before is not None:
        known = int(np.flatnonzero(lattice[place - 1, :top] == before)[0])
    here = lattice[place]
    begin = top * (1 + known)
    return Candidates(here[:top].astype(np.int32), here[begin : begin + top])
