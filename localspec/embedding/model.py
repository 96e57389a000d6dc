"""A model that turns texts into vectors, or scores documents for a query."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import numpy as np

from localspec.embedding.turns import Turns
from localspec.embedding.vectors import EUCLIDEAN, fitting, normalised, shortened
from localspec.errors import BadModelFile, BadSetting, ContextFull
from localspec.llama.devices import devices
from localspec.llama.embedding import MOST_TEXTS, EmbeddingContext, special_tokens, trained_length
from localspec.llama.model import Model
from localspec.machine.devices import Device
from localspec.models.local_models import ModelFile
from localspec.stopping import Closing

MOST_TOKENS: Final = 8192  # maximum tokens of a text, if the model was trained with more
_FIRST_TOKENS: Final = 512  # length of the first context; a longer text makes a longer one
_LEAST_TOKENS: Final = 64  # tokens of the first pass, whose time nobody knows, and least budget of a pass
_SPARE_BYTES: Final = 1 << 30  # memory of a GPU that stays free beside the weights
Text = str | Sequence[int | str]  # a text, its tokens, or both mixed


@dataclass(frozen=True, slots=True)
class Vectors:
    rows: np.ndarray  # float32 [texts, width]; without pooling [all tokens, width]; of scores [texts, 1]
    tokens: tuple[int, ...]  # number of tokens of each text
    pooled: bool


class EmbeddingModel(Closing):
    def __init__(
        self,
        file: ModelFile,
        pooling: str = "",
        threads: int | None = None,
        gpu: Device | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`pooling`: "rank" for scores, "" as the file says. `gpu`: used if it has room. Raises BadModelFile."""
        if pooling == "rank" and not any(tensor.name.startswith("cls") for tensor in file.header.tensors):
            raise BadModelFile(f"{file.name} scores no documents", hint="choose a reranker")
        self._model = Model(file.here, devices=place(file.all_bytes, gpu, devices() if gpu else ()))
        self._more, self._turns, self._reading = (pooling, threads), turns or Turns(), threading.Lock()
        self.limit = min(trained_length(self._model), MOST_TOKENS)
        self._context = EmbeddingContext(self._model, min(_FIRST_TOKENS, self.limit), *self._more)
        self._tokens_per_second = 0.0
        if self._context.pooling == "rank" != pooling:
            self.close()
            raise BadModelFile(f"{file.name} is a reranker", hint="use it with --rerank, or localspec.rerank")

    def close(self) -> None:
        self._model.close()

    def embed(
        self,
        texts: Iterable[Text],
        norm: int = EUCLIDEAN,
        dimensions: int | None = None,
        *,
        truncate: bool = False,
        first: int = 0,
        cancelled: Callable[[], bool] = bool,
    ) -> Vectors:
        """Return the vectors of texts. `truncate`: cut long texts, else raise ContextFull. `first`: as in `rerank`."""
        embedded = self._read([self._tokens(text) for text in texts], first, truncate, cancelled)
        rows = shortened(embedded.rows, dimensions)
        return replace(embedded, rows=normalised(rows, norm) if embedded.pooled else rows)

    def rerank(
        self, query: str, documents: Iterable[str], *, first: int = 0, cancelled: Callable[[], bool] = bool
    ) -> Vectors:
        """Return the scores of documents. `first`: the place of the first one in its request, for errors."""
        asked = [self._asked(query, document) for document in documents]
        return self._read(asked, first, False, cancelled)

    def _tokens(self, text: Text) -> list[int]:
        """Return the tokens of a text. In a mixed list only a text at its beginning gets special tokens."""
        vocab, tokens = self._model.vocab, list[int]()
        for place, part in enumerate([text] if isinstance(text, str) else text):
            if isinstance(part, str):
                tokens += vocab.tokenize(part, parse_special=True, add_special=not place)
            elif 0 <= part < vocab.size:
                tokens.append(part)
            else:
                raise BadSetting("token id out of range", hint=f"use ids from 0 to {vocab.size - 1}")
        return tokens

    def _asked(self, query: str, document: str) -> list[int]:
        vocab = self._model.vocab
        if prompt := self._model.metadata.get("tokenizer.chat_template.rerank"):
            text = prompt.replace("{query}", query).replace("{document}", document)
            return vocab.tokenize(text, parse_special=True)
        before, between, after = special_tokens(self._model)
        asked, answered = (vocab.tokenize(text, parse_special=False) for text in (query, document))
        return [*before, *asked, *between, *answered, *after]

    def _cut(self, tokens: list[int], place: int, truncate: bool) -> list[int]:
        """Return tokens that fit into the context; the special token at the end stays there."""
        if not tokens:
            raise BadSetting(f"text {place} of the input is empty", hint="leave it out")
        if len(tokens) > self.limit and not truncate:
            what = f"text {place} of the input is too large: it has {len(tokens):,} tokens"
            raise ContextFull(f"{what}, and {self._model.name} reads {self.limit:,}", hint="split the text")
        ends = int(self._model.vocab.is_special(tokens[-1]))
        return tokens if len(tokens) <= self.limit else tokens[: self.limit - ends] + tokens[-1:] * ends

    def _read(
        self, texts: list[list[int]], first: int, truncate: bool, cancelled: Callable[[], bool]
    ) -> Vectors:
        texts = [self._cut(tokens, place, truncate) for place, tokens in enumerate(texts, first)]
        lengths, rows, at = [*map(len, texts)], list[np.ndarray](), 0
        with self._reading:
            context = self._fitting(max(lengths, default=0))
            while at < len(texts):
                budget = max(int(self._tokens_per_second * self._turns.seconds), _LEAST_TOKENS)
                budget = min(budget, context.widest)
                count = fitting(lengths[at : at + MOST_TEXTS], budget)
                width = budget if context.in_pieces and count == 1 else context.widest
                for start in range(0, lengths[at], width):
                    pieces = [tokens[start : start + width] for tokens in texts[at : at + count]]
                    with self._turns.turn(cancelled):
                        began = perf_counter()
                        found = context.read(pieces, start)
                        self._tokens_per_second = sum(map(len, pieces)) / max(perf_counter() - began, 1e-6)
                rows, at = rows + found, at + count
        whole = np.concatenate(rows) if rows else np.zeros((0, context.width), np.float32)
        return Vectors(whole, tuple(lengths), context.pooling != "none")

    def _fitting(self, tokens: int) -> EmbeddingContext:
        """Return a context for a text of so many tokens. The first one is short, because most texts are."""
        if tokens > self._context.length:
            length = min(1 << (tokens - 1).bit_length(), self.limit)
            longer = EmbeddingContext(self._model, length, *self._more)  # if it fails, the short one stays
            self._context.close()
            self._context = longer
        return self._context


def place(size: int, gpu: Device | None, there: Iterable[Device]) -> tuple[str, ...]:
    """Return the GPU if it has room for weights of `size` bytes beside the pair, else () for the CPU."""
    room = 2 * size + _SPARE_BYTES
    return tuple(each.name for each in there if gpu and each.name == gpu.name and each.free_bytes > room)
