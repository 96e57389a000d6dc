"""The result of a forward pass: for each token a row of logits, and a hidden row if a drafter reads it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Candidates(NamedTuple):
    """The top-k logits of a row, in no particular order, as a backend sampler returns them."""

    ids: np.ndarray  # int32 [k]
    logits: np.ndarray  # float32 [k]
    whole: Callable[[], np.ndarray] | None = None  # returns the whole row; None for a draft's rows


Row = np.ndarray | Candidates  # float32 [vocab] logits, or the top-k logits


class LateRows(Sequence[Row]):
    """The rows of logits of a pass that a device may still be computing; the first access waits for the pass."""

    def __init__(self, count: int, read: Callable[[], Sequence[Row]]) -> None:
        self._count, self._read = count, read
        self._rows: Sequence[Row] | None = None  # None until the first access

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401  a row, or a sequence of them
        if self._rows is None:
            self._rows = self._read()
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self[:])


ComingRow = Row | LateRows  # a row, or LateRows with one row


def arrived(row: ComingRow) -> Row:
    """Return the row; if a device still computes the row, wait."""
    # `isinstance` would take longer, because LateRows is a Sequence.
    return row[0] if type(row) is LateRows else row  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """The hidden states that a drafter reads of each token. A hidden row contains them in the order of these fields."""

    layers: tuple[int, ...] = ()  # layers whose inputs the drafter reads
    output: bool = False  # whether the drafter reads the input of the target's own prediction heads


class ForwardPass(NamedTuple):
    """One forward pass: over a chunk of a prompt, or over the newest token and its proposal.

    Rows are views that the next decode of the same model overwrites.
    """

    start: int  # position of the first token
    tokens: Sequence[int]
    rows: Sequence[Row] = ()  # rows of logits, of the last len(rows) tokens
    hidden: np.ndarray | None = None  # hidden rows, float32 [tokens, columns]; None if no drafter reads them
    replies: int = 1  # number of replies that shared the pass
    running: int = 1  # number of replies that ran during the pass
    pass_width: int = 0  # number of tokens of all replies in the pass; 0 if it has only `tokens`
    waited_seconds: float = 0.0  # seconds that the reply waited for passes of other replies

    @property
    def queued(self) -> bool:
        """Whether the device may still be computing the rows. Meanwhile other work takes no extra time."""
        return isinstance(self.rows, LateRows)


class Continued(Sequence[int]):
    """A text and a possible continuation as one text, without a copy."""

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


NO_TEXT = ForwardPass(0, ())  # drafters that observe this pass forget the text


_COMPARED = 1024  # tokens are compared in slices of this length, which is several times as fast


def common_prefix_length(held: Sequence[int], start: int, tokens: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts: `held`, and `held[:start]` followed by `tokens`."""
    end = min(len(held), start + len(tokens))
    for at in range(start, end, _COMPARED):
        stop = min(at + _COMPARED, end)
        if list(held[at:stop]) != list(tokens[at - start : stop - start]):
            return next(i for i in range(at, stop) if held[i] != tokens[i - start])
    return end


def begins_alike(one: Sequence[int], other: Sequence[int], count: int) -> bool:
    """Return whether two texts have at least `count` tokens, and their first `count` are equal."""
    if min(len(one), len(other)) < count:
        return False
    return not count or (one[count - 1] == other[count - 1] and list(one[:count]) == list(other[:count]))
