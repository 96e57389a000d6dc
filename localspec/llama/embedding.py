"""A context that reads whole texts and returns their embeddings or scores, which llama.cpp pools."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from localspec.errors import BackendFailure
from localspec.llama.batch import Batch, Stretch
from localspec.llama.cache import Cache, params_of
from localspec.llama.library import lib
from localspec.llama.load import Load
from localspec.llama.model import Model

POOLINGS: Final = ("none", "mean", "cls", "last", "rank")  # as in llama.cpp's enum llama_pooling_type
MOST_TEXTS: Final = 64  # maximum texts in a pass, because each text is a sequence
_PIECE: Final = 512  # maximum tokens in a piece of a text, if llama.cpp can read the text in pieces


class EmbeddingContext(Cache):
    def __init__(self, model: Model, length: int, pooling: str = "", threads: int | None = None) -> None:
        """`length`: maximum tokens of all texts in a pass. `pooling`: one of POOLINGS; "": the file's pooling."""
        params = params_of(model, Load(length, threads=threads))
        params.embeddings, params.kv_unified, params.n_seq_max = True, True, min(MOST_TEXTS, length)
        params.pooling_type = POOLINGS.index(pooling) if pooling else -1
        kept = int(model.metadata.get(f"{model.architecture}.pooling_type", 0))
        pooled = pooling or POOLINGS[kept]
        # Models without a KV cache, and means over all tokens, need the whole text in one pass.
        self.in_pieces = model.generates_text and pooled in ("last", "rank")
        params.n_batch = params.n_ubatch = min(length, _PIECE) if self.in_pieces else length
        super().__init__(model, params)
        self.length, self.pooling = length, POOLINGS[lib.llama_pooling_type(self.handle)]
        self.widest = self.chunk if self.in_pieces else length
        self.width: int = 1 if self.pooling == "rank" else lib.llama_model_n_embd_out(model.pointer)
        self._batch = Batch(self.widest, sequences=MOST_TEXTS)

    def read(self, texts: Sequence[Sequence[int]], start: int = 0) -> list[np.ndarray]:
        """Return the embedding of each text, float32 [1, width], from one pass; without pooling, that of each token.

        `start`: for a single text, the number of its tokens that earlier passes have read. Raises as `run`.
        """
        with self.calling:
            if self.memory and not start:
                lib.llama_memory_clear(self.memory, True)
            stretches = [Stretch(n, start, text, [1] * len(text)) for n, text in enumerate(texts)]
            batch = self._batch.fill_all(stretches)
            self.run(lib.llama_decode, batch, batch.n_tokens)
            if self.pooling == "none":
                return [self._row(lib.llama_get_embeddings_ith, n) for n in range(batch.n_tokens)]
            return [self._row(lib.llama_get_embeddings_seq, n) for n in range(len(texts))]

    def _row(self, found: Any, number: int) -> np.ndarray:
        if pointer := found(self.handle, number):
            row = np.ctypeslib.as_array(pointer, (1, self.width)).copy()
            if np.isfinite(row).all():
                return row
        hint = "use another file of the model, or another --pooling"
        raise BackendFailure(f"{self.model.name} made an unusable vector: it has NaN or infinity", hint=hint)


def special_tokens(model: Model) -> tuple[list[int], list[int], list[int]]:
    """Return the tokens before a query, between a query and a document, and after a document."""
    vocab = lib.llama_model_get_vocab(model.pointer)
    last, separator = lib.llama_vocab_eos(vocab), lib.llama_vocab_sep(vocab)
    ends = [separator if last < 0 else last] if lib.llama_vocab_get_add_eos(vocab) else []
    between = [*ends, *([separator] if lib.llama_vocab_get_add_sep(vocab) else [])]
    return [lib.llama_vocab_bos(vocab)] if lib.llama_vocab_get_add_bos(vocab) else [], between, ends
