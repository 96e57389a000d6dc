"""What the loop needs from models and drafters: the seams where models, toys and new drafters plug in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localspec.events import Cycle, Mode, Origin, Source


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
    confidence: float  # max of q (of the draft's softmax when one-hot): known before the token is drawn


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens d1..dk with their distributions q1..qk; the first `certain` are accepted unseen."""

    tokens: tuple[int, ...] = ()
    q: tuple[Distribution | None, ...] = ()  # one for each token; None: one-hot
    confidences: tuple[float, ...] = ()
    source: Source = Source.PLAIN
    certain: int = 0  # leading tokens that nothing else could replace (forced by a grammar)
    depth: int = 0  # how many tokens were allowed; stopping early leaves fewer
    mode: Mode = Mode.DRAFTING  # why this cycle drafts, or does not


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many draft tokens were kept, and the target's own next token."""

    accepted: int
    next_token: int
    origin: Origin  # FIX if it replaced a draft token, BONUS if all were kept, PLAIN if there were none


class Constraint(Protocol):
    """What a grammar lets follow a text: the same for target and draft, before the rest of the chain."""

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        """A whole row without what may not follow `history`, the whole text.

        The forbidden logits are -inf, or only the others are left, whole and ascending, as Candidates.
        """


class Decoder(Protocol):
    """A model with a cache: feed tokens, get a row of logits for each, step back."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds, in order."""

    @property
    def capacity(self) -> int:
        """Tokens that the cache can hold."""

    @property
    def busy_seconds(self) -> float:
        """Time spent inside the model since it was made; the loop takes differences."""

    def decode(self, tokens: Sequence[int], rows: int) -> Sequence[Row]:
        """Append tokens to the cache; rows for the last `rows` of them, valid until the next decode."""

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Append tokens chunk by chunk without rows, yielding the count so far: stop iterating to cancel."""

    def rollback(self, keep: int) -> None:
        """Forget everything after the first `keep` tokens: absolute, so saying it twice is saying it once."""


class Stopping(Protocol):
    """When to end a proposal early: told confidences and never tokens, so that it cannot bias the output.

    A drafter draws a token and asks `keeps`; a token that is not kept is dropped and ends the proposal. This
    is lossless because `Draw.confidence` depends on q alone. After keeping a token it asks `goes_on` before
    it runs the draft model again.
    """

    def keeps(self, confidence: float, drafted: int) -> bool:
        """Is a token of this confidence worth its place in the verify batch, after `drafted` others?"""

    def goes_on(self, drafted: int) -> bool:
        """Is another draft step worth its time, now that the proposal holds `drafted` tokens?"""


class Drafter(Protocol):
    """Proposes tokens; told after every cycle what the text has become.

    A drafter that reads the target's hidden rows (EAGLE-3, MTP) holds the target's decoder and reads them in
    `settle`, which the loop calls after verification and before the next decode.
    """

    @property
    def busy_seconds(self) -> float:
        """Time spent inside a draft model since it was made."""

    def propose(self, tokens: Sequence[int], limit: int, stopping: Stopping | None = None) -> Proposal:
        """At most `limit` tokens to follow `tokens`, fewer where `stopping` says so; none: plain decoding."""

    def settle(self, tokens: Sequence[int]) -> None:
        """The text is now `tokens`: drop whatever a cache holds beyond it. Idempotent."""


class Strategy(Protocol):
    """Who drafts in the coming cycle and how much, or nobody: the only thing the loop asks about drafting.

    `localspec.drafters.arbiter` has the implementations. A cycle of the loop is

        proposal = strategy.propose(tokens, room)
        rows = target.decode([x, *proposal.tokens]); verdict = rule.verify(...); target.rollback(...)
        strategy.settle(tokens)
        strategy.learn(cycle)       # Cycle(depth=proposal.depth, mode=proposal.mode, ...)
    """

    @property
    def busy_seconds(self) -> float:
        """Time spent inside draft models since they were made."""

    @property
    def why_off(self) -> str | None:
        """While drafting is off because it does not pay: the sentence for the user, with measured numbers."""

    @property
    def plain_step_seconds(self) -> float | None:
        """What a plain step costs here, as far as it was measured."""

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        """At most `room` tokens to follow `tokens`; none means plain decoding."""

    def settle(self, tokens: Sequence[int]) -> None:
        """The text is now `tokens`. Idempotent; a new prompt is told the same way."""

    def learn(self, cycle: Cycle) -> None:
        """What the last cycle did and cost."""


class Rule(Protocol):
    """How draft tokens are drawn and how the target judges them (see verification.py)."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def seed_decides(self) -> bool:
        """Whether the seed and the target alone decide the text, whatever is drafted and how much."""

    def draw(self, row: Row, history: Sequence[int], start: int) -> Draw:
        """The draft token to follow `history`, from the draft model's row.

        `start` is the length of the text where the proposal begins. It belongs to the key of the draw: a
        rejected token says something about the randomness behind it, so a later cycle must not meet it again.
        """

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        """Judge a proposal that follows `history`; rows[i] is the target's row after i draft tokens."""
