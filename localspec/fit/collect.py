"""The target answers prompts, several at once, and what it thought of at every token is kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.llama.model import Model
from localspec.llama.several import Several
from localspec.sampler.candidates import largest

KEPT = 64  # of the largest logits of every row
AT_ONCE = 8  # texts in one batch


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target wrote behind a prompt, and the row that each token came from."""

    prompt: tuple[int, ...]
    tokens: np.ndarray  # int32 [n]
    ids: np.ndarray  # int32 [n, KEPT]: the likeliest tokens of each row, ascending
    logits: np.ndarray  # float16 [n, KEPT], less the largest of the row
    rest: np.ndarray  # float32 [n]: the probability of all other tokens


Choose = Callable[[np.ndarray, Sequence[int]], int]
"""The next token of a text, from its row and the text so far."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, how its answer is chosen, and what sums up every row of it."""

    prompt: Sequence[int]
    choose: Choose
    mass: np.ndarray | None = (
        None  # float64 [vocabulary]: each row adds the square roots of its probabilities
    )


class _Writing:
    """One answer on its way."""

    def __init__(self, asked: Asked) -> None:
        self.prompt, self._choose, self._mass = tuple(asked.prompt), asked.choose, asked.mass
        self.tokens: list[int] = []
        self._kept: list[tuple[np.ndarray, np.ndarray, float]] = []

    def take(self, row: np.ndarray) -> int:
        self._kept.append(kept_of(row))
        if self._mass is not None:
            self._mass += np.exp((row - row.max()) / 2)
        self.tokens.append(self._choose(row, [*self.prompt, *self.tokens]))
        return self.tokens[-1]

    def answer(self) -> Answer:
        ids, logits, rest = zip(*self._kept, strict=True)
        return Answer(
            self.prompt,
            np.array(self.tokens, np.int32),
            np.stack(ids),
            np.stack(logits),
            np.array(rest, np.float32),
        )


def kept_of(row: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The likeliest tokens of a row, their logits less the largest, and the probability of all others."""
    ids, logits = largest(row, KEPT)
    top = logits.max()
    total = float(np.exp(row - np.float32(top)).sum(dtype=np.float64))
    held = float(np.exp(logits - top).sum())
    return ids.astype(np.int32), (logits - top).astype(np.float16), max(0.0, 1.0 - held / total)


def answers(
    model: Model,
    prompts: Iterator[Asked],
    *,
    room: int,
    length: int,
    threads: int | None = None,
) -> Iterator[Answer]:
    """Answers of at most `room` tokens, as they come to their ends; prompts that leave no room are passed over."""
    with Several(model, AT_ONCE, length, threads) as cache:
        writing: dict[int, _Writing] = {}
        fits = (asked for asked in prompts if len(asked.prompt) + room <= length)
        following: dict[int, int] = {}
        while True:
            for text in set(range(AT_ONCE)) - writing.keys():
                if (found := next(fits, None)) is not None:
                    writing[text] = _Writing(found)
                    following[text] = writing[text].take(cache.begin(text, found.prompt))
            ended = [
                text
                for text, one in writing.items()
                if len(one.tokens) >= room or model.vocab.is_end(following[text])
            ]
            for text in ended:
                yield writing.pop(text).answer()
                del following[text]
            if not writing:
                if not ended:
                    return
                continue
            texts = list(following.items())
            for (text, _), row in zip(texts, cache.append(texts), strict=True):
                following[text] = writing[text].take(row)
