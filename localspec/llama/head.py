"""Prediction heads in llama.cpp: their caches, and calls on them that are timed.

`HeadContext` guesses a token in a run (EAGLE-3, MTP): batches of tokens, each with a hidden row. `BlockContext`
guesses a whole block in one run (DFlash, DSpark): hidden rows lie in its cache.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from localspec.llama.batch import Batch
from localspec.llama.cache import Cache, make_room, params_of
from localspec.llama.lane import Lane
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows, choose_prediction_layer, get_output, rows_at, set_output
from localspec.llama.states import restore_state, state_of
from localspec.sampler.passes import Candidates, Row


class HeadCache(Cache):
    """A context beside its target's: not to be used while the target decodes."""

    def __init__(
        self,
        model: Model,
        target: Lane,
        *,
        chunk: int,
        rows: int,
        predicts: bool,
        length: int,
        threads: int | None = None,
        **types: str,
    ) -> None:
        """Room for `length` rows, `chunk` of them in one call, and `rows` where they come with their logits.

        predicts: whether it runs the prediction layers of a model (MTP); types: as for Context, whose errors it raises.
        """
        params = params_of(model, length, threads, **types)
        make_room(params, chunk, rows)
        params.ctx_other = target.handle
        if predicts:
            params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        super().__init__(model, params, target)
        self._calling = target.calling
        self._last_token = model.vocab.size - 1
        self._rows = FullRows(model.vocab.size, min(model.vocab.size, target.model.vocab.size))

    def run(self, call: Callable[[Any, Any], int], batch: Any, count: int, **options: Any) -> None:  # noqa: ANN401
        """As `Cache.run`, while no lane of the target decodes."""
        with self._calling:
            super().run(call, batch, count, **options)

    def cut(self, position: int) -> None:
        """Forget the rows from this position on."""
        lib.llama_memory_seq_rm(self._memory, 0, position, -1)

    def state(self) -> np.ndarray | None:
        """A copy of the cache's state, uint8; None where llama.cpp cannot copy it."""
        return None if self.model.remote else state_of(self.handle)

    def restore(self, state: np.ndarray) -> bool:
        """Restore a state; after a failure the cache is empty, and this is False."""
        lib.llama_memory_clear(self._memory, True)
        if restore_state(self.handle, state):
            return True
        lib.llama_memory_clear(self._memory, True)
        return False


ROWS = 32  # with their logits, in one call into llama.cpp; where there is an encoder, it plans logits for every row
CHUNK = 128  # in one call, where there is none


class HeadContext(HeadCache):
    """A head and its cache: not for two threads at once, nor while its target decodes."""

    def __init__(self, model: Model, target: Lane, *, encodes: bool, **options: Any) -> None:  # noqa: ANN401
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
        self._features: Batch | None = None
        if encodes:  # it reads the hidden rows of three layers of its target
            columns = 3 * int(model.metadata[f"{model.architecture}.target_hidden_size"])
            self._features = Batch(self.chunk, columns=columns, tokens=False)
        self.columns = self._width  # of a feature
        self.most_rows = min(ROWS, self.chunk)  # that one call can decode with their logits

    def features(self, hidden: np.ndarray) -> np.ndarray:
        """The head's features from the target's hidden rows [rows, columns]: float32 [rows, self.columns]."""
        if self._features is None:
            return np.array(hidden, dtype=np.float32)
        found = []
        for begin in range(0, len(hidden), self.chunk):
            part = hidden[begin : begin + self.chunk]
            # The encoder looks at no positions, but llama.cpp refuses those that do not follow the cache's.
            position = int(lib.llama_memory_seq_pos_max(self._memory, 0)) + 1
            batch = self._features.fill((), position, rows=len(part), embeddings=part)
            self.run(lib.llama_encode, batch, len(part))
            found.append(np.array(rows_at(get_output(self.handle), len(part), self._width)))
        return np.concatenate(found)

    def choose(self, layer: int, position: int) -> None:
        """Switch to this one of several prediction layers, without the rows from `position` on."""
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


BLOCK_ROWS = 32  # rows in one call
BLOCK = 16  # tokens, where a file does not say


class BlockContext(HeadCache):
    """A head and its cache: not for two threads at once, nor while its target decodes."""

    def __init__(
        self,
        model: Model,
        target: Lane,
        *,
        layers: int,
        anchored: bool,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """`layers`: number of target layers that it reads; `options`: those of HeadCache.

        anchored: the newest token's place guesses the first token (DSpark), not the place after it.
        """
        super().__init__(model, target, chunk=BLOCK_ROWS, rows=BLOCK_ROWS, predicts=False, **options)
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
        self._mask: int = lib.llama_vocab_mask(lib.llama_model_get_vocab(model.pointer))
        self.most_rows = self.chunk  # that one call reads

    def read(self, hidden: np.ndarray, position: int) -> None:
        """Append the target's hidden rows [rows, columns] of these positions."""
        for begin in range(0, len(hidden), self.most_rows):
            part = hidden[begin : begin + self.most_rows]
            batch = self._hidden.fill((), position + begin, rows=0, embeddings=part)
            self.run(lib.llama_decode, batch, len(part))

    def guess(self, token: int, count: int, position: int) -> Callable[[int, int | None], Row]:
        """Guess the `count` tokens after this one, at most `most_guesses`.

        A row depends on the token drawn at the place before, and is valid until the next call.
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
