"""What the loop needs from models and drafters, said once: the seams where real models, toys and new drafters plug in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localspec.events import Cycle, Origin, Source


@dataclass(frozen=True, slots=True)
class Candidates:
    """The largest logits of a row, in no particular order: what a backend top-k sampler returns."""

    ids: np.ndarray  # int32 [k]
    logits: np.ndarray  # float32 [k]


Row = np.ndarray | Candidates  # float32 [vocab] logits, or only the largest of them


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sparse probability distribution after the whole sampler chain."""

    ids: np.ndarray  # int [n], ascending
    probabilities: np.ndarray  # float64 [n], sums to 1

    def of(self, token: int) -> float:
        """The probability of a token; 0.0 when the chain removed it."""
        i = int(np.searchsorted(self.ids, token))
        return float(self.probabilities[i]) if i < len(self.ids) and self.ids[i] == token else 0.0


@dataclass(frozen=True, slots=True)
class Draw:
    """One drafted token and the distribution it was drawn from."""

    token: int
    q: Distribution | None  # None: one-hot, the token was chosen and not drawn
    confidence: float  # max of q (or of the draft's softmax when one-hot): known before the token is looked at


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens d1..dk with their distributions q1..qk; the first `certain` of them are accepted unseen."""

    tokens: tuple[int, ...] = ()
    q: tuple[Distribution | None, ...] = ()  # one for each token; None: one-hot
    confidences: tuple[float, ...] = ()
    source: Source = Source.PLAIN
    certain: int = 0  # leading tokens that nothing else could replace (forced by a grammar)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many draft tokens were kept, and the target's own next token."""

    accepted: int
    next_token: int
    origin: Origin  # FIX if it replaced a draft token, BONUS if all were kept, PLAIN if there were none


class Decoder(Protocol):
    """A model with a cache: feed tokens, get a row of logits for each, step back."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    @property
    def busy_seconds(self) -> float:
        """Time spent inside the model since it was made; the loop takes differences."""

    def decode(self, tokens: Sequence[int], rows: int) -> Sequence[Row]:
        """Append tokens to the cache; rows for the last `rows` of them, valid until the next decode."""

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Append tokens chunk by chunk without rows, yielding the count so far: stop iterating to cancel."""

    def rollback(self, keep: int) -> None:
        """Forget everything after the first `keep` tokens: absolute, so saying it twice is saying it once."""


class Drafter(Protocol):
    """Proposes tokens; told after every cycle what the text has become.

    A drafter that reads the target's hidden rows (EAGLE-3, MTP) holds the target's decoder and reads them in
    `settle`, which the loop calls after verification and before the next decode.
    """

    @property
    def busy_seconds(self) -> float:
        """Time spent inside a draft model since it was made."""

    def propose(self, tokens: Sequence[int], limit: int) -> Proposal:
        """At most `limit` tokens to follow `tokens`; an empty proposal means plain decoding."""

    def settle(self, tokens: Sequence[int]) -> None:
        """The text is now `tokens`: drop whatever a cache holds beyond it. Idempotent."""


class Rule(Protocol):
    """How draft tokens are drawn and how the target judges them (see verification.py)."""

    name: str

    def draw(self, row: Row, history: Sequence[int]) -> Draw:
        """The draft token to follow `history`, from the draft model's row."""

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        """Judge a proposal that follows `history`; rows[i] is the target's row after i draft tokens."""


class DepthControl(Protocol):
    """How many tokens to draft next."""

    def next(self, room: int) -> int:
        """The depth of the coming cycle, 0..room; 0 is plain decoding."""

    def learn(self, cycle: Cycle) -> None:
        """What the last cycle did and cost."""


Cancelled = Callable[[], bool]
