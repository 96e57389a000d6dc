"""The result of one decode: rows of logits, and hidden rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Candidates:
    """The largest logits of a row, in no particular order: what a backend top-k sampler returns."""

    ids: np.ndarray  # int32 [k]
    logits: np.ndarray  # float32 [k]
    whole: Callable[[], np.ndarray] | None = (
        None  # gives the row; the target's may need it, a draft's does not
    )


Row = np.ndarray | Candidates  # float32 [vocab] logits, or only the largest of them


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """The hidden rows of the target that a drafter reads, as columns of one row in this order."""

    layers: tuple[int, ...] = ()  # the inputs of these layers
    output: bool = False  # what the target's own prediction heads read


@dataclass(frozen=True, slots=True)
class Pass:
    """One decode: a chunk of a prompt, or the newest token and the proposal that follows it.

    Rows are views that the next decode of the same model overwrites.
    """

    start: int  # position of the first token
    tokens: Sequence[int]
    rows: Sequence[Row] = ()  # of the last len(rows) tokens
    hidden: np.ndarray | None = None  # float32 [tokens, columns]; None if nobody wants them
    replies: int = 1  # that shared the pass
    pass_width: int = 0  # tokens of the whole pass; 0: these are all
    waited_seconds: float = 0.0  # for prompts of other replies


class Continued(Sequence[int]):
    """A text and what may follow it, as one text without a copy of it."""

    def __init__(self, text: Sequence[int], more: Sequence[int]) -> None:
        self.text, self.more = text, more

    def __len__(self) -> int:
        return len(self.text) + len(self.more)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401  a token, or a list of them
        at, known = range(len(self))[index], len(self.text)
        if isinstance(at, int):
            return self.text[at] if at < known else self.more[at - known]
        more = self.more[max(at.start - known, 0) : max(at.stop - known, 0)]
        return [*self.text[at.start : at.stop], *more]


NO_TEXT = Pass(0, ())  # followed, it says that the text was forgotten


def first_tokens(batch: Pass, count: int) -> Pass:
    """A pass with a row for every token, as if it had been over the first `count` alone."""
    hidden = None if batch.hidden is None else batch.hidden[:count]
    return replace(batch, tokens=batch.tokens[:count], rows=batch.rows[:count], hidden=hidden)


def standing(held: Sequence[int], start: int, tokens: Sequence[int]) -> int:
    """Length of the cached prefix that matches `tokens` at position `start`, where the text ends."""
    end = min(len(held), start + len(tokens))
    return next((i for i in range(start, end) if held[i] != tokens[i - start]), end)
