"""A prediction head that guesses a token in a run: batches of tokens, each with a hidden row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.llama.batch import Batch
from localspec.llama.context import Context
from localspec.llama.head_cache import HeadCache
from localspec.llama.hidden import choose_prediction_layer, get_output, rows_at, set_output
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows

ROWS = 32  # with their logits, in one call into llama.cpp; where there is an encoder, it plans logits for every row
CHUNK = 128  # in one call, where there is none


class HeadContext(HeadCache):
    """A head and its cache: not for two threads at once, nor while its target decodes."""

    def __init__(self, model: Model, target: Context, *, encodes: bool, **options: Any) -> None:  # noqa: ANN401
        """`options`: those of HeadCache.

        model: the head's file, or the target's own model with a head inside.
        encodes: whether hidden rows pass an encoder first (EAGLE-3); otherwise the head is a layer of prediction
            layers (MTP) and takes them as they are.
        """
        super().__init__(
            model, target, chunk=ROWS if encodes else CHUNK, rows=ROWS, predicts=not encodes, **options
        )
        set_output(self.handle, True, True)
        self._width: int = lib.llama_model_n_embd_out(model.pointer)
        self._batch = Batch(self.chunk, columns=self._width)
        self._features = Batch(self.chunk, columns=_encoder_columns(model), tokens=False) if encodes else None
        shared = min(model.vocab.size, target.model.vocab.size)
        self._rows = FullRows(model.vocab.size, shared)
        self._last_token = model.vocab.size - 1
        model.adopt(self)

    @property
    def columns(self) -> int:
        """Of a feature."""
        return self._width

    @property
    def most_rows(self) -> int:
        """That one call can decode with their logits."""
        return min(ROWS, self.chunk)

    def features(self, hidden: np.ndarray) -> np.ndarray:
        """What the head reads of hidden rows [rows, columns] of the target: float32 [rows, self.columns]."""
        if self._features is None:
            return np.array(hidden, dtype=np.float32)
        found = []
        for begin in range(0, len(hidden), self.chunk):
            part = hidden[begin : begin + self.chunk]
            # The encoder looks at no positions, but llama.cpp refuses those that do not follow the cache's.
            batch = self._features.fill((), self.next_position, rows=len(part), embeddings=part)
            self.run(lib.llama_encode, batch, len(part))
            found.append(np.array(rows_at(get_output(self.handle), len(part), self._width)))
        return np.concatenate(found)

    def choose(self, layer: int, position: int) -> None:
        """Go on with this one of several prediction layers, and without the rows from `position` on."""
        self.cut(position)
        choose_prediction_layer(self.handle, layer)

    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None:
        """Append rows to the cache, for no logits."""
        for begin in range(0, len(tokens), self.chunk):
            end = begin + self.chunk
            self._decode(tokens[begin:end], features[begin:end], position + begin, rows=False)

    def predict(
        self, tokens: Sequence[int], features: np.ndarray, position: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append at most `most_rows` rows; the logits after the last, valid until the next call, and its feature."""
        count = len(tokens)
        # The graphs of heads compute all rows, so a batch with output flags for some of them reads the wrong ones.
        self._decode(tokens, features, position, rows=True)
        row = self._rows.read(self.handle, count)[-1]
        return row, np.array(rows_at(get_output(self.handle), count, self._width)[-1])

    def _decode(self, tokens: Sequence[int], features: np.ndarray, position: int, *, rows: bool) -> None:
        count = len(tokens)
        known = [min(token, self._last_token) for token in tokens]
        batch = self._batch.fill(known, position, rows=count if rows else 0, embeddings=features)
        self.run(lib.llama_decode, batch, count)


def _encoder_columns(model: Model) -> int:
    """Of what an encoder reads: the hidden rows of three layers of its target."""
    return 3 * int(model.metadata[f"{model.architecture}.target_hidden_size"])
