"""The contexts of prediction heads in llama.cpp.

`HeadContext` (EAGLE-3, MTP) drafts one token a run, from tokens and their hidden rows. `BlockContext`
(DFlash, DSpark) drafts a block of tokens in one run, from the hidden rows in its cache.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localspec.llama.batch import Batch
from localspec.llama.cache import Cache, params_of, size_context
from localspec.llama.context import SlotDecoder
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.prompt_cache import restore_state, state_of
from localspec.llama.rows import FullRows, choose_prediction_layer, get_output, rows_at, set_output
from localspec.sampler.passes import Candidates, Row


class HeadCache(Cache):
    """The context of a head. It shares the target's `calling`, because they must take turns to decode."""

    def __init__(
        self, model: Model, target: SlotDecoder, *, chunk: int, rows: int, predicts: bool, **options: Any
    ) -> None:
        """`chunk`, `rows`: maximum tokens and rows of logits in a call. `predicts`: whether the head is MTP."""
        params = params_of(model, **options)
        size_context(params, chunk, rows)
        params.ctx_other = target.shared.handle
        if predicts:
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        super().__init__(model, params, target)
        self.calling = target.shared.calling
        self._last_token = model.vocab.size - 1
        self._rows = FullRows(model.vocab.size, min(model.vocab.size, target.model.vocab.size))

    def cut(self, position: int) -> None:
        lib.llama_memory_seq_rm(self.memory, 0, position, -1)

    def state(self) -> np.ndarray | None:
        """Return a copy (uint8) of the KV cache; None if the model is remote or llama.cpp cannot copy it."""
        return None if self.model.remote else state_of(self.handle)

    def restore(self, state: np.ndarray) -> bool:
        """Restore a copy that `state` returned. Return False after a failure; the cache is then empty."""
        lib.llama_memory_clear(self.memory, True)
        if not (restored := restore_state(self.handle, state)):
            lib.llama_memory_clear(self.memory, True)
        return restored


ROWS = 32  # maximum tokens with output rows in one call
CHUNK = 128  # maximum tokens in one call of a head without an encoder


class HeadContext(HeadCache):
    def __init__(self, model: Model, target: SlotDecoder, *, encodes: bool, **options: Any) -> None:
        """`encodes`: True for EAGLE-3, whose encoder turns hidden rows into features; False for MTP."""
        chunk = ROWS if encodes else CHUNK
        super().__init__(model, target, chunk=chunk, rows=ROWS, predicts=not encodes, **options)
        set_output(self.handle, True, True)
        self._width: int = lib.llama_model_n_embd_out(model.pointer)
        self._batch = Batch(self.chunk, columns=self._width)
        self._features: Batch | None = None
        if encodes:  # the encoder reads the hidden rows of three target layers
            columns = 3 * int(model.metadata[f"{model.architecture}.target_hidden_size"])
            self._features = Batch(self.chunk, columns=columns, tokens=False)
        self.columns = self._width  # width of a feature row
        self.most_rows = min(ROWS, self.chunk)  # maximum tokens with logits in one call

    def features(self, hidden: np.ndarray) -> np.ndarray:
        """Turn the target's hidden rows [rows, columns] into features, float32 [rows, self.columns]."""
        if self._features is None:
            return np.array(hidden, dtype=np.float32)
        found = []
        for begin in range(0, len(hidden), self.chunk):
            part = hidden[begin : begin + self.chunk]
            # The encoder ignores positions, but llama.cpp accepts only the position after the last one in the cache.
            position = int(lib.llama_memory_seq_pos_max(self.memory, 0)) + 1
            batch = self._features.fill((), position, rows=len(part), embeddings=part)
            self.run(lib.llama_encode, batch, len(part))
            found.append(np.array(rows_at(get_output(self.handle), len(part), self._width)))
        return np.concatenate(found)

    def choose(self, layer: int, position: int) -> None:
        """Switch to the prediction layer `layer`, and remove the cache's cells from `position` on."""
        self.cut(position)
        choose_prediction_layer(self.handle, layer)

    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None:
        for begin in range(0, len(tokens), self.chunk):
            end = begin + self.chunk
            self._decode(tokens[begin:end], features[begin:end], position + begin, rows=False)

    def predict(
        self, tokens: Sequence[int], features: np.ndarray, position: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append at most `most_rows` tokens; return the logits (a view) and the feature of the last token."""
        count = len(tokens)
        # Request all rows: for a request of fewer rows, llama.cpp returns wrong ones.
        self._decode(tokens, features, position, rows=True)
        row = self._rows.read(self.handle, count)[-1]
        return row, np.array(rows_at(get_output(self.handle), count, self._width)[-1])

    def _decode(self, tokens: Sequence[int], features: np.ndarray, position: int, *, rows: bool) -> None:
        count = len(tokens)
        known = [min(token, self._last_token) for token in tokens]
        batch = self._batch.fill(known, position, rows=count if rows else 0, embeddings=features)
        self.run(lib.llama_decode, batch, count)


BLOCK_ROWS = 32  # maximum tokens or hidden rows in one call
BLOCK = 16  # number of tokens in a block, for a model file without a block size


class BlockContext(HeadCache):
    def __init__(
        self, model: Model, target: SlotDecoder, *, layers: int, anchored: bool, **options: Any
    ) -> None:
        """`layers`: number of target layers in a hidden row. `anchored`: whether a block's first row is used."""
        super().__init__(model, target, chunk=BLOCK_ROWS, rows=BLOCK_ROWS, predicts=False, **options)
        self._top = int(self._fact("selector_top_k", "0"))
        self._anchored = anchored and self._fact("sample_from_anchor", "true") == "true"
        block = min(int(self._fact("block_size", str(BLOCK))), self.chunk)
        self.most_draft_tokens = block if self._anchored else block - 1
        set_output(self.handle, True, not self._top)
        lib.llama_set_causal_attn(self.handle, self._fact("attention.causal", "false") == "true")
        self._width: int = lib.llama_model_n_embd(model.pointer)
        positions = 4 if lib.llama_model_rope_type(model.pointer) == lib.LLAMA_ROPE_TYPE_MROPE else 1
        self._hidden = Batch(self.chunk, columns=layers * self._width, tokens=False, position_rows=positions)
        self._block = Batch(self.chunk)
        self._mask: int = lib.llama_vocab_mask(lib.llama_model_get_vocab(model.pointer))
        self.most_rows = self.chunk  # maximum hidden rows in one call

    def read(self, hidden: np.ndarray, position: int) -> None:
        """Append the target's hidden rows [rows, columns], the first one at `position`."""
        for begin in range(0, len(hidden), self.most_rows):
            part = hidden[begin : begin + self.most_rows]
            batch = self._hidden.fill((), position + begin, rows=0, embeddings=part)
            self.run(lib.llama_decode, batch, len(part))

    def guess(self, token: int, count: int, position: int) -> Callable[[int, int | None], Row]:
        """Compute `count` rows after `token`. Return a function that gives a row by its index and previous token."""
        block = [min(token, self._last_token)] + [self._mask] * (count - self._anchored)
        batch = self._block.fill(block, position, 0 if self._top else len(block))
        self.run(lib.llama_decode, batch, len(block))
        first = 0 if self._anchored else 1
        if not self._top:
            rows = self._rows.read(self.handle, len(block))[first:]
            return lambda place, before: rows[place]
        lattice = rows_at(get_output(self.handle), len(block), self._width)
        lattice, top = lattice[first:], self._top

        def row(place: int, before: int | None) -> Row:
            """Return the `top` candidates of the row at index `place`, with their scores after token `before`."""
            known = 0 if before is None else int(np.flatnonzero(lattice[place - 1, :top] == before)[0])
            begin = top * (1 + known)
            return Candidates(lattice[place, :top].astype(np.int32), lattice[place, begin : begin + top])

        return row

    def _fact(self, name: str, default: str) -> str:
        return self.model.metadata.get(f"{self.model.architecture}.{name}", default)
