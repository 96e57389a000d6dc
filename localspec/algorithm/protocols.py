"""The interfaces of the loop: models, toys and drafters implement them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode, Origin, Source
from localspec.sampler.chain import Distribution
from localspec.sampler.passes import HiddenRows, Pass, Row


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
    certain: int = 0  # leading tokens without an alternative (forced by a grammar)
    depth: int = 0  # most tokens that were allowed
    mode: Mode = Mode.DRAFTING  # why this cycle drafts, or does not
    runs: int = 0  # runs of the draft model; 0: see `Drafter.model_runs`
    padding: int = 0  # padding behind the others: nobody sees its rows
    reading_seconds: float = 0.0  # that the drafter read before it
    deciding_seconds: float = 0.0  # that deciding on drafting took

    @classmethod
    def drawn(cls, draws: Sequence[Draw], source: Source, depth: int, runs: int) -> Self:
        """A proposal that a model drew: each token with its distribution."""
        return cls(
            tokens=tuple(draw.token for draw in draws),
            q=tuple(draw.q for draw in draws),
            confidences=tuple(draw.confidence for draw in draws),
            source=source,
            depth=depth,
            runs=runs,
        )

    def first(self, count: int) -> Self:
        """The proposal of the first `count` of its tokens."""
        tokens, q, confidences = self.tokens[:count], self.q[:count], self.confidences[:count]
        return replace(self, tokens=tokens, q=q, confidences=confidences)

    @classmethod
    def copied(cls, tokens: tuple[int, ...], chances: tuple[float, ...], source: Source) -> Self:
        """A proposal copied from a text: chosen, not drawn; `chances` that they are kept."""
        return cls(tokens, (None,) * len(tokens), chances, source, depth=len(tokens))


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many draft tokens were kept, and the target's own next token."""

    accepted: int
    next_token: int
    origin: Origin  # FIX if it replaced a draft token, BONUS if all were kept, PLAIN if there were none


class Decoder(Protocol):
    """A model with a cache: feed tokens, get a pass with a row of logits for each, step back."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens in the cache, in order."""

    capacity: int  # tokens that the cache can hold
    busy_seconds: float  # inside the model since it was made; the loop takes differences

    def decode(self, tokens: Sequence[int], rows: int) -> Pass:
        """Append tokens to the cache; rows for the last `rows` of them."""

    def cut_rows(self, logits: int | None) -> None:
        """Rows from here on need hold only this many of their largest logits; None: all of them."""

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] = ...) -> Iterator[Pass]:
        """Append tokens chunk by chunk, without logits; stop iterating to cancel, `cancelled` ends a chunk early."""

    def rollback(self, keep: int) -> None:
        """Forget everything after the first `keep` tokens; idempotent.

        A verify batch can always be rolled back. Raises RollbackUnsupported for more, where the cache cannot.
        """

    def rewind(self, keep: int) -> int:
        """Forget everything after the first `keep` tokens, or more where the cache must; returns the tokens left."""

    def recall(self, tokens: Sequence[int], *, save: bool = True) -> float:
        """Load the saved text with the longest common prefix into the cache.

        `save`: keep the present text for later prompts. Returns the seconds that it took from the disk; 0: not there.
        """

    def wants_storing(self) -> bool:
        """Whether a text in memory is worth its place on the disk."""

    def store(self, *, resting: bool) -> None:
        """Copy texts that are worth it for the disk; `resting`: as long as little time went into that."""

    @property
    def needs_checkpoints(self) -> bool:
        """Whether `rewind` may lose more than asked."""

    def checkpoint(self, *, lasting: bool) -> None:
        """Let `rewind` come back to this length, as long as the text continues from here.

        The next checkpoint takes the place of one that is not `lasting`: it is for drafts.
        """


class Vocabulary(Protocol):
    """Satisfied by a GGUF's vocabulary and by the toys of the tests."""

    size: int  # tokens
    bos: int | None  # the token that begins a text; None if the model has none
    eos: int | None  # the token that ends a text; None if the model has none
    add_bos: bool  # whether the model wants bos in front of every prompt

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Tokens of a text; `parse_special` reads control texts as such, `add_special` adds bos and eos."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, possibly part of a character; b"" for control tokens."""

    def text(self, token: int) -> str:
        """The token's name in the model file, for example "<|im_end|>"."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a reply."""

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token without text."""

    def control_texts(self) -> Mapping[str, int]:
        """Every text that tokenize(parse_special=True) turns into one token, with that token."""


class Stopping(Protocol):
    """When to end a proposal early.

    It sees confidences and never tokens, so it cannot bias the output. A drafter draws a token and asks `keeps`; a
    token that is not kept is dropped and ends the proposal. `Draw.confidence` depends on q alone, so this is lossless.
    Then the drafter asks `goes_on` before the next run of its model.
    """

    def keeps(self, confidence: float, drafted: int) -> bool:
        """Is a token of this confidence worth its place in the verify batch, after `drafted` others?"""

    def goes_on(self, drafted: int) -> bool:
        """Is another draft step worth its time, now that the proposal holds `drafted` tokens?"""


class Rule(Protocol):
    """How draft tokens are drawn and how the target judges them (see verification.py)."""

    @property
    def name(self) -> str:
        """The user's name for it."""

    @property
    def seed_decides(self) -> bool:
        """Whether seed and target alone decide the text, for any draft and depth."""

    def draw(self, row: Row, history: Sequence[int], start: int) -> Draw:
        """The draft token to follow `history`, from the draft model's row.

        `start` is the length of the text where the proposal begins. It is part of the draw's key: a rejected token
        reveals something about the randomness behind it, so a later cycle must not use it again.
        """

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        """Judge a proposal that follows `history`; rows[i] is the target's row after i draft tokens."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much of a text a drafter has read, in tokens; by default nothing is unread."""

    unread: int = 0  # newest tokens that it must read before it can propose
    held: int = 0  # tokens before these that it has read
    older: int = 0  # tokens before those that it has room for

    @property
    def window(self) -> int:
        """Tokens from the first that it has read to the newest."""
        return self.unread + self.held


class Drafter:
    """Proposes tokens and follows the text: it observes every batch of the target, prompts included.

    It lives as long as its target and serves one reply after the other. A new kind defines `source`, `propose`,
    `observe` and `model_runs`. The other methods have defaults for a drafter without a model.
    """

    source: Source  # name of its tokens, and key of its stored price
    hidden_rows_needed: HiddenRows | None = None  # of the target's layers: asked once, at load
    failure: LocalspecError | None = None  # why it stopped proposing until the next reply

    @property
    def busy_seconds(self) -> float:
        """Time spent inside a draft model since it was made."""
        return 0.0

    def model_runs(self, depth: int) -> int:
        """Model runs for `depth` tokens: `depth`, 1 if they come at once, 0 without a model."""
        return 0

    def warm_up(self, batches: Sequence[Sequence[int]]) -> None:
        """Run its model on batches of tokens and forget them, to time it or warm it up.

        Only for a drafter with a model. Raises as decoding does.
        """

    def begin(self) -> None:
        """Another reply begins: an earlier failure is forgotten."""
        self.failure = None

    def observe(self, batch: Pass, kept: int) -> None:
        """The first `kept` tokens of this batch are now the end of the text, from `batch.start` on.

        Called after every batch, and with an empty one after a cut. Hidden rows must be read here.
        """

    def backlog(self, tokens: Sequence[int]) -> Backlog:
        """Read and unread parts of `tokens`."""
        return Backlog()

    def read(self, tokens: Sequence[int], most: int) -> int:
        """Read up to `most` unread tokens, oldest first; returns their number."""
        return 0

    def restart(self, tokens: Sequence[int], window: int) -> None:
        """Forget the text, and start reading `window` tokens before the newest one."""

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        """At most `limit` tokens to follow `tokens`; `stopping` may end them earlier; none: plain decoding."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A step of plain decoding."""

    seconds: float | None = None  # None while unknown
    replies: int = 1  # that take it together


class Strategy:
    """Decides who drafts in the next cycle, and how much. The loop asks nothing else about drafting."""

    @property
    def busy_seconds(self) -> float:
        """Time spent inside draft models since they were made."""
        return 0.0

    @property
    def why_off(self) -> str | None:
        """While drafting is off because it does not pay: the sentence for the user, with measured numbers."""
        return None

    @property
    def failure(self) -> LocalspecError | None:
        """Why a drafter that failed stopped drafting in this reply."""
        return None

    @property
    def plain_step(self) -> PlainStep:
        """A plain step here and now, as measured."""
        return PlainStep()

    def catch_up(self, tokens: Sequence[int]) -> Iterator[None]:
        """Let drafters read a prompt before the first cycle, in chunks; stop iterating to cancel."""
        return iter(())

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        """At most `room` tokens to follow `tokens`; none means plain decoding."""
        raise NotImplementedError

    def observe(self, batch: Pass, kept: int) -> None:
        """See `Drafter.observe`."""

    def learn(self, cycle: Cycle) -> None:
        """Learn from the last cycle and its cost."""

    def end(self) -> None:
        """The reply has ended: others plan without it."""
