"""A small model that makes vectors of texts or scores documents, also while replies run; `embed` and `rerank`."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from localspec.errors import BadSetting, ContextFull
from localspec.files import after_fork
from localspec.gguf.matching import check_small
from localspec.llama.check import ensure_gpu
from localspec.llama.devices import default_gpu, devices
from localspec.llama.embedding import MOST_TEXTS, EmbeddingContext, special_tokens
from localspec.llama.model import Model
from localspec.machine.devices import Device
from localspec.models.local_models import ModelFile
from localspec.models.names import LOOKUP, find
from localspec.options import configured
from localspec.stopping import WorkStopped

MOST_TOKENS: Final = 8192  # maximum tokens of a text, even if the model was trained with longer texts
_FIRST_TOKENS: Final = 512  # length of the first context; for a longer text, a longer context replaces it
_LEAST_TOKENS: Final = 64  # limit of the first pass; later limits follow the measured speed, but are no lower
_SPARE_BYTES: Final = 1 << 30  # memory of a GPU that stays free beside the weights
EUCLIDEAN: Final = 2  # the default norm of vectors
ALONE_SECONDS: Final = 0.2  # a pass should take this many seconds while no reply runs
BESIDE_SECONDS: Final = 0.05  # a pass should take this many seconds while a reply runs
WAITS: Final = 5.0  # while a reply runs, the wait after a pass takes this many times the seconds of the pass
_LOOK_SECONDS: Final = 0.1
Text = str | Sequence[int | str]  # a text, its tokens, or both mixed


class Vectors(NamedTuple):
    """Rows of numbers that the model made of texts."""

    rows: np.ndarray  # float32 [texts, width]; without pooling [all tokens, width]; for scores [texts, 1]
    tokens: tuple[int, ...]  # number of tokens of each text


class Turns:
    """The turns of passes over texts: while replies run, the passes take at most a sixth of the time."""

    def __init__(self) -> None:
        self.held: AbstractContextManager[Any] = nullcontext()  # the lock that each pass holds
        self._replies, self._next = 0, 0.0  # running replies; while one runs, no pass begins before `_next`
        self._ended = threading.Condition()

    @contextmanager
    def reply(self) -> Iterator[None]:
        """Mark a reply as running."""
        with self._ended:
            self._replies += 1
        try:
            yield
        finally:
            with self._ended:
                self._replies -= 1
                self._ended.notify_all()

    @property
    def seconds(self) -> float:
        """The seconds that a pass should take."""
        return BESIDE_SECONDS if self._replies else ALONE_SECONDS

    @contextmanager
    def turn(self, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Wait until the next pass may begin. Raises WorkStopped if the request is cancelled."""
        with self._ended:
            while self._replies and not cancelled() and (left := self._next - monotonic()) > 0:
                self._ended.wait(min(left, _LOOK_SECONDS))
        if cancelled():
            raise WorkStopped
        with self.held:
            began = monotonic()
            yield
            ended = monotonic()
        self._next = ended + WAITS * (ended - began)


class EmbeddingModel:
    """A loaded model. Its memory is freed with its last reference, so a running call keeps the model."""

    def __init__(
        self,
        file: ModelFile,
        pooling: str = "",
        threads: int | None = None,
        gpu: Device | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`pooling`: "rank" for scores; "": the file's. `gpu`: a GPU to use if it has room. Raises BadModelFile."""
        check_small(file.header, file.name, pooling)
        self._model = Model(file.here, devices=place(file.all_bytes, gpu, devices() if gpu else ()))
        self._more, self._turns, self._reading = (pooling, threads), turns or Turns(), threading.Lock()
        self.limit = min(file.header.of_model("context_length") or MOST_TOKENS, MOST_TOKENS)
        self._context = EmbeddingContext(self._model, min(_FIRST_TOKENS, self.limit), *self._more)
        self._tokens_per_second = 0.0

    def read(
        self,
        texts: Iterable[Text],
        query: str | None = None,
        *,
        norm: int = EUCLIDEAN,
        dimensions: int | None = None,
        truncate: bool = False,
        first: int = 0,
        cancelled: Callable[[], bool] = bool,
    ) -> Vectors:
        """Return the vectors of texts, or their scores for a query. Raises BadSetting, ContextFull, WorkStopped.

        `norm`: as in `normalised`. `truncate`: cut texts that are too long. `first`: the first text's place in its
        request, for errors.
        """
        if dimensions is not None and not 0 < dimensions <= self._context.width:
            what = f"dimensions cannot be {dimensions}"
            raise BadSetting(what, hint=f"give 1 to {self._context.width}")
        tokens = [self._tokens(text) if query is None else self._asked(query, str(text)) for text in texts]
        tokens = [self._cut(each, place, truncate) for place, each in enumerate(tokens, first)]
        with self._reading:
            rows = self._rows(tokens, cancelled)
        rows = rows[:, :dimensions]
        as_is = self._context.pooling in ("none", "rank")
        return Vectors(rows if as_is else normalised(rows, norm), tuple(map(len, tokens)))

    def _tokens(self, text: Text) -> list[int]:
        """Return the tokens of a text. In a list of texts and token ids, bos and eos are added only to a first text."""
        vocab, tokens = self._model.vocab, list[int]()
        for place, part in enumerate([text] if isinstance(text, str) else text):
            if isinstance(part, str):
                tokens += vocab.tokenize(part, parse_special=True, add_special=not place)
            elif 0 <= part < vocab.size:
                tokens.append(part)
            else:
                raise BadSetting("a token id is out of range", hint=f"use ids from 0 to {vocab.size - 1}")
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
        """Return tokens, cut to fit into the context; a special token at their end stays at the end."""
        if not tokens:
            raise BadSetting(f"text {place} of the input is empty", hint="leave it out")
        if len(tokens) <= self.limit:
            return tokens
        if not truncate:
            what = f"text {place} of the input is too large: it has {len(tokens):,} tokens"
            raise ContextFull(
                f"{what}, but {self._model.name} reads at most {self.limit:,} tokens", hint="split the text"
            )
        ends = int(self._model.vocab.is_special(tokens[-1]))
        return tokens[: self.limit - ends] + tokens[-1:] * ends

    def _rows(self, texts: list[list[int]], cancelled: Callable[[], bool]) -> np.ndarray:
        context, lengths, at = self._fitting(max(map(len, texts), default=0)), [*map(len, texts)], 0
        rows = [np.zeros((0, context.width), np.float32)]
        while at < len(texts):
            budget = max(int(self._tokens_per_second * self._turns.seconds), _LEAST_TOKENS)
            budget = min(budget, context.widest)
            count = sum(total <= budget for total in accumulate(lengths[at : at + MOST_TEXTS])) or 1
            width = budget if context.in_pieces and count == 1 else context.widest
            for start in range(0, lengths[at], width):
                pieces = [tokens[start : start + width] for tokens in texts[at : at + count]]
                with self._turns.turn(cancelled):
                    began = perf_counter()
                    found = context.read(pieces, start)
                    self._tokens_per_second = sum(map(len, pieces)) / max(perf_counter() - began, 1e-6)
            rows, at = rows + found, at + count
        return np.concatenate(rows)

    def _fitting(self, tokens: int) -> EmbeddingContext:
        """Return a context for a text of this many tokens. The first context is short, because most texts are short."""
        if tokens > self._context.length:
            length = min(1 << (tokens - 1).bit_length(), self.limit)
            longer = EmbeddingContext(self._model, length, *self._more)  # if this fails, the short one stays
            self._context.close()
            self._context = longer
        return self._context


def place(size: int, gpu: Device | None, there: Iterable[Device]) -> tuple[str, ...]:
    """Return the GPU if it has room for `size` bytes of weights beside the pair; else return () for the CPU."""
    room = 2 * size + _SPARE_BYTES
    return tuple(each.name for each in there if gpu and each.name == gpu.name and each.free_bytes > room)


def normalised(rows: np.ndarray, norm: int = EUCLIDEAN) -> np.ndarray:
    """Return rows of length 1 by one of llama-server's norms; a row of zeros stays as it is.

    `norm`: -1: none, 0: the largest number becomes 32,760, 1: taxicab, 2: Euclidean, p: p-norm.
    """
    if norm < 0:
        return rows
    wide = np.abs(rows.astype(np.float64))
    most, sums = wide.max(axis=1, keepdims=True), (wide ** max(norm, 1)).sum(axis=1, keepdims=True)
    lengths = sums ** (1 / norm) if norm else most / 32760
    scaled: np.ndarray = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled


_kept: dict[object, EmbeddingModel] = {}  # the loaded model, by the arguments that named it
_loading = threading.Lock()


@after_fork
def _forget() -> None:
    global _loading
    _loading = threading.Lock()
    unload()


def embed(
    texts: Iterable[Text],
    *,
    model: str | Path | None = None,
    pooling: str = "",
    dimensions: int | None = None,
    truncate: bool = False,
    pull: bool = False,
) -> np.ndarray:
    """Return the vectors of texts, float32 [texts, width], each of length 1.

    texts: texts, or lists of token ids. model: a name, a GGUF file or a model on Hugging Face; by default the setting
    `embed`. pooling: mean, cls or last, by default as the file says; none: one row for each token, not normalised.
    dimensions: numbers in a row. truncate: cut texts that are too long. pull: download missing files. The model stays
    loaded until a call names another one or `unload()` is called. Raises LocalspecError.
    """
    given = [texts] if isinstance(texts, str) else texts
    return _loaded("embed", model, pooling, pull).read(given, dimensions=dimensions, truncate=truncate).rows


def rerank(
    query: str, documents: Iterable[str], *, model: str | Path | None = None, pull: bool = False
) -> np.ndarray:
    """Return a score for each document, float32 [documents]; the best answer to the query has the highest one.

    model: a reranker, named as in `embed`; by default the setting `rerank`. Raises LocalspecError.
    """
    return _loaded("rerank", model, "rank", pull).read(documents, query).rows[:, 0]


unload = _kept.clear  # a running call keeps its model until it ends


def _loaded(setting: str, model: str | Path | None, pooling: str, pull: bool) -> EmbeddingModel:
    with _loading:
        key = setting, model, pooling
        if key not in _kept:
            settings = configured()
            if not (wanted := model or settings.get(setting)):
                raise BadSetting("no model is given", hint=f"name one, or set `{setting}` in config.toml")
            file = find(wanted, draft=LOOKUP, pull=pull).target
            unload()
            if gpu := default_gpu():
                ensure_gpu(gpu.name, gpu.description, "auto", "f16", bool)
            _kept[key] = EmbeddingModel(file, pooling, settings.get("threads"), gpu)
        return _kept[key]
