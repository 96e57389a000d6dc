"""The contexts of prediction heads in llama.cpp.

`HeadContext` (EAGLE-3, MTP) drafts one token a run, from tokens and their hidden rows. `BlockContext`
(DFlash, DSpark) drafts a block of tokens in one run, from the hidden rows in its cache.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from math import inf
from typing import Any, NamedTuple, Self

import numpy as np

from localspec.algorithm.pass_order import Part
from localspec.llama.batch import Batch, Stretch
from localspec.llama.cache import WIDEST, Cache, params_of, size_context
from localspec.llama.cached_text import restore_state, state_of
from localspec.llama.context import SlotDecoder
from localspec.llama.library import lib
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.llama.rows import FullRows, choose_prediction_layer, get_output, rows_at, set_output
from localspec.llama.shared import joined
from localspec.sampler.passes import Candidates, ForwardPass, Row

ROWS = 32  # maximum tokens of a slot with output rows in one call
CHUNK = 128  # maximum tokens in one call of a head without an encoder
BLOCK = 16  # number of tokens in a block, for a model file without a block size


class Call(NamedTuple):
    """A kind of call into llama.cpp. Slots can share a call if they want the same kind."""

    batch: Batch
    outputs: bool = True  # whether the outputs of all tokens are computed
    hidden: bool = True  # whether the head's own outputs are read
    encodes: bool = False  # whether to run the encoder, which adds nothing to the KV cache


class HeadCache(Cache):
    """The head of a slot. The slots share a context and the target's lock `calling`, so one decodes at a time."""

    sequence = 0
    layer: int | None = None  # the prediction layer; None: the head has only one
    shift: Callable[[], int] = int  # target's position - number of tokens: images change it
    stale: float = inf  # the rows from this position on are removed before the next call
    found: ForwardPass  # the result of the latest call

    def __init__(self, model: Model, target: SlotDecoder, load: Load, chunk: int, *, predicts: bool) -> None:
        """`chunk`: maximum tokens of a slot in a call. `predicts`: whether the head is MTP."""
        slots, params = load.slots, params_of(model, load)
        size_context(params, chunk, ROWS, slots)
        params.ctx_other = target.shared.handle
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP if predicts else params.ctx_type
        super().__init__(model, params, target)
        self.calling = target.calling
        self._batch = partial(Batch, self.chunk, sequences=slots)
        self.chunk, self.capacity = min(chunk, self.chunk), self.capacity // slots
        self.most_rows = min(ROWS, self.chunk)  # maximum tokens with output rows in one call
        self.batcher, self.heads = target.shared.batcher if slots > 1 else None, {0: self}
        self.columns: int = lib.llama_model_n_embd_out(model.pointer)  # width of an output row
        self._rows = FullRows(model.vocab.size, min(model.vocab.size, target.model.vocab.size))

    def on(self, sequence: int) -> Self:
        """Return the head of another slot."""
        self.heads[sequence] = head = copy(self)
        head.sequence = sequence
        return head

    def cut(self, position: int) -> None:
        self.stale = min(self.stale, position)

    def forget(self, position: float = inf) -> None:
        """Remove stale rows, and all rows from `position` on. Hold `calling`, because another slot may decode."""
        if (first := min(self.stale, position)) < inf:
            lib.llama_memory_seq_rm(self.memory, self.sequence, int(first), -1)
            self.stale = inf

    def state(self) -> np.ndarray | None:
        """Return a copy (uint8) of the KV cache; None if the model is remote or llama.cpp cannot copy it."""
        self.forget()
        return None if self.model.remote else state_of(self.handle, self.sequence)

    def restore(self, state: np.ndarray) -> bool:
        self.forget()
        return restore_state(self.handle, state, self.sequence)

    def _fact(self, name: str, default: str) -> str:
        return self.model.metadata.get(f"{self.model.architecture}.{name}", default)

    def decode(self, parts: Sequence[Part]) -> Sequence[ForwardPass]:
        """Make one call for the heads of these slots. Their next calls must be of one kind."""
        heads = [self.heads[slot] for slot in sorted(part.slot for part in parts)]
        with self.calling:
            self._decode(heads[0].call, heads[0].layer, heads)
        return [self.heads[part.slot].found for part in parts]

    def _decode(self, call: Call, layer: int | None, heads: Sequence["HeadCache"]) -> None:
        """Make one call for these heads. They must be sorted by slot, or llama.cpp needs more passes."""
        width, stretches, values = max(len(head.tokens) for head in heads), list[Stretch](), heads[0].values
        if len(heads) > 1 and values is not None:
            values = np.concatenate([np.resize(head.values, (width, values.shape[1])) for head in heads])
        for head in heads:
            # Remove stale rows, padding, rows of another layer, and rows of a failed call.
            head.forget(inf if layer is None and not self.batcher else head.position)
            tokens = [min(token, self.model.vocab.size - 1) for token in head.tokens]
            tokens += tokens[-1:] * (width - len(tokens))  # pad, because a pass has sequences of equal length
            stretches.append(Stretch(head.sequence, head.position, tokens, [call.outputs] * width))
        if layer is not None:
            choose_prediction_layer(self.handle, layer)
        before, total, batch = self.busy_seconds, width * len(heads), call.batch.fill_all(stretches, values)
        self.run(lib.llama_encode if call.encodes else lib.llama_decode, batch, total)
        hidden = rows_at(get_output(self.handle), total, self.columns).copy() if call.hidden else np.empty(0)
        for number, head in enumerate(heads):
            head.busy_seconds += 0.0 if head is self else self.busy_seconds - before
            own = slice(number * width, end := number * width + len(head.tokens))
            rows = self._rows.read(self.handle, end)[own] if call.outputs and not call.encodes else ()
            head.found = ForwardPass(head.position, head.tokens, rows, hidden[own], pass_width=total)

    def _run(self, call: Call, tokens: Sequence[int], position: int, values: Any = None) -> ForwardPass:
        """Return a pass with rows of logits (views, valid until `cut`) and copies of the head's own outputs."""
        found = list[ForwardPass]()
        for begin in range(0, len(tokens), self.chunk):
            own, count = slice(begin, begin + self.chunk), min(self.chunk, len(tokens) - begin)
            self.call, self.tokens = call, tokens[own]
            self.values = values[own] if isinstance(values, np.ndarray) else values
            # The encoder ignores positions, but llama.cpp refuses any position except the next one of the cache.
            self.position = position + self.shift() + (0 if call.encodes else begin)
            if self.batcher:
                part = Part(self.sequence, self.tokens, count, count > WIDEST)
                self.batcher.decode(self.heads[0], part, (call, self.layer))
            else:
                self._decode(call, self.layer, [self])
            found.append(self.found)
        return joined(found)


class HeadContext(HeadCache):
    def __init__(self, model: Model, target: SlotDecoder, load: Load, *, encodes: bool) -> None:
        """`encodes`: True for EAGLE-3, whose encoder turns hidden rows into features; False for MTP."""
        super().__init__(model, target, load, ROWS if encodes else CHUNK, predicts=not encodes)
        set_output(self.handle, True, True)
        # Request all rows, because llama.cpp returns wrong rows if fewer are requested.
        self._predict = Call(self._batch(columns=self.columns))
        self._read = self._predict._replace(outputs=False, hidden=False)
        columns = 3 * int(self._fact("target_hidden_size", "0"))  # EAGLE-3 reads three target layers
        self._encode = Call(self._batch(columns=columns, tokens=False), encodes=True) if encodes else None

    def features(self, hidden: np.ndarray, position: int) -> np.ndarray:
        """Turn the target's hidden rows [rows, columns] into features, float32 [rows, self.columns]."""
        if self._encode is None:
            return np.array(hidden, dtype=np.float32)
        return np.asarray(self._run(self._encode, [0] * len(hidden), position, hidden).hidden)

    def read(self, tokens: Sequence[int], features: np.ndarray, position: int) -> None:
        self._run(self._read, tokens, position, features)

    def predict(self, tokens: Sequence[int], features: np.ndarray, position: int) -> tuple[Row, np.ndarray]:
        """Append at most `most_rows` tokens; return the logits (a view) and the feature of the last token."""
        found = self._run(self._predict, tokens, position, features)
        return found.rows[-1], np.asarray(found.hidden)[-1]


class BlockContext(HeadCache):
    def __init__(self, model: Model, target: SlotDecoder, load: Load, *, layers: int, anchored: bool) -> None:
        """`layers`: number of target layers in a hidden row. `anchored`: whether a block's first row gives a token."""
        super().__init__(model, target, load, ROWS, predicts=False)
        self._top = int(self._fact("selector_top_k", "0"))
        self._anchored = anchored and self._fact("sample_from_anchor", "true") == "true"
        block = min(int(self._fact("block_size", str(BLOCK))), self.chunk)
        self.most_draft_tokens = block if self._anchored else block - 1
        set_output(self.handle, True, not self._top)
        lib.llama_set_causal_attn(self.handle, self._fact("attention.causal", "false") == "true")
        columns = layers * lib.llama_model_n_embd(model.pointer)
        positions = 4 if lib.llama_model_rope_type(model.pointer) == lib.LLAMA_ROPE_TYPE_MROPE else 1
        hidden = self._batch(columns=columns, tokens=False, position_rows=positions)
        self._read = Call(hidden, outputs=False, hidden=False)
        self._guess = Call(self._batch(), outputs=not self._top, hidden=self._top > 0)
        self._mask: int = lib.llama_vocab_mask(lib.llama_model_get_vocab(model.pointer))

    def read(self, hidden: np.ndarray, position: int) -> None:
        """Append the target's hidden rows [rows, columns], the first one at `position`."""
        self._run(self._read, [0] * len(hidden), position, hidden)

    def guess(self, token: int, count: int, position: int) -> Callable[[int, int | None], Row]:
        """Compute `count` rows after `token`. Return a function from an index and the token before to the row."""
        block, first = [token] + [self._mask] * (count - self._anchored), 0 if self._anchored else 1
        found = self._run(self._guess, block, position)
        if not self._top:
            return lambda place, before: found.rows[first + place]
        lattice, top = np.asarray(found.hidden)[first:], self._top

        def row(place: int, before: int | None) -> Row:
            """Return the `top` candidates of the row at index `place`, with their scores after token `before`."""
            known = 0 if before is None else int(np.flatnonzero(lattice[place - 1, :top] == before)[0])
            begin = top * (1 + known)
            return Candidates(lattice[place, :top].astype(np.int32), lattice[place, begin : begin + top])

        return row
