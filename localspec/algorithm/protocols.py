"""The interfaces that the loop uses; models, test models and drafters implement them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode, Origin, Source
from localspec.sampler.chain import Distribution
from localspec.sampler.passes import ComingRow, ForwardPass, HiddenRows, Row


class Draw(NamedTuple):
    token: int
    q: Distribution | None  # None: the token was not drawn at random
    confidence: float  # largest probability in the draft's distribution


class Proposal(NamedTuple):
    """Draft tokens d1..dk with their distributions q1..qk; the first `certain` are accepted without a test."""

    tokens: tuple[int, ...] = ()
    q: tuple[Distribution | None, ...] = ()  # one for each token; None: the token was not drawn at random
    confidences: tuple[float, ...] = ()
    source: Source = Source.PLAIN
    certain: int = 0  # number of leading tokens that a grammar forces
    depth: int = 0  # largest number of draft tokens that was allowed
    mode: Mode = Mode.DRAFTING  # why this cycle drafts or does not draft
    runs: int = 0  # runs of the draft model; 0: as many as `Drafter.model_runs` returns
    prefill_seconds: float = 0.0  # time of the drafter's prefill before this proposal
    deciding_seconds: float = 0.0  # time of the decision whether to draft, and with which drafter

    @classmethod
    def drawn(cls, draws: Sequence[Draw], source: Source, depth: int, runs: int) -> Self:
        tokens, q, confidences = zip(*draws, strict=True) if draws else ((), (), ())
        return cls(tokens, q, confidences, source, depth=depth, runs=runs)

    def first(self, count: int) -> Self:
        tokens, q, confidences = self.tokens[:count], self.q[:count], self.confidences[:count]
        return self._replace(tokens=tokens, q=q, confidences=confidences)

    @classmethod
    def copied(cls, tokens: tuple[int, ...], chances: tuple[float, ...], source: Source) -> Self:
        """Return a proposal of tokens copied from a text; `chances`: each token's chance of acceptance."""
        return cls(tokens, (None,) * len(tokens), chances, source, depth=len(tokens))


class Verdict(NamedTuple):
    """The number of accepted draft tokens, and the target's own next token."""

    accepted: int
    next_token: int
    origin: Origin  # BONUS if all draft tokens were accepted, PLAIN if there were none, else FIX


class LoopDecoder(Protocol):
    """A model with a KV cache: it appends tokens, returns their rows of logits, and steps back."""

    @property
    def length(self) -> int: ...

    @property
    def busy_seconds(self) -> float: ...  # total seconds inside the model

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        """Append tokens to the cache; return a pass with a row of logits for each of the last `rows` tokens."""

    def rollback(self, keep: int) -> None:
        """Forget all but the first `keep` tokens; idempotent.

        Tokens of the latest verify batch can always be forgotten. Raises RollbackUnsupported if older ones cannot.
        """


class Decoder(LoopDecoder, Protocol):
    @property
    def tokens(self) -> Sequence[int]: ...  # tokens in the cache, in order

    capacity: int  # number of tokens that the cache can hold
    late: bool  # whether `decode` may return before a device has computed the rows; reading a row then waits
    conversation: str  # the stored conversation that the tokens belong to; "" for none

    def top_k_rows(self, logits: int | None) -> None:
        """Let later rows contain only this many of their largest logits; None: all logits."""

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] = ...) -> Iterator[ForwardPass]:
        """Append tokens in chunks, without logits. To cancel, stop iterating, or return True from `cancelled`."""

    def rewind(self, keep: int) -> int:
        """Step back to `keep` tokens, or to fewer if the cache cannot do this; return the number of tokens left."""

    def recall(self, tokens: Sequence[int], *, save: bool = True) -> float:
        """Load the prompt cache with the longest common prefix; return the seconds spent on reading the disk.

        `save`: whether to save the present state first, as a prompt cache for later texts.
        """

    def wants_storing(self) -> bool:
        """Return whether any prompt cache in memory should be stored on the disk."""

    def store(self) -> None:
        """Write useful prompt caches to the disk."""

    @property
    def needs_checkpoints(self) -> bool:
        """Whether `rewind` may forget more tokens than requested if there are no checkpoints."""

    def checkpoint(self, *, lasting: bool) -> None:
        """Save the present state for `rewind`. A checkpoint that is not `lasting` is replaced by the next one."""


class Vocabulary(Protocol):
    """The vocabulary of a GGUF file, or a small one in tests."""

    size: int  # number of tokens
    bos: int | None  # the token that begins a text; None if the model has none
    eos: int | None  # the token that ends a text; None if the model has none
    add_bos: bool  # whether the model wants bos in front of every prompt
    # fill-in-the-middle tokens: prefix, suffix, middle, file name; None if the model has none
    infill_tokens: tuple[int | None, int | None, int | None, int | None]

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Return the tokens of a text.

        `parse_special`: whether to recognise special tokens. `add_special`: whether to add bos and eos.
        """

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; b"" for special tokens. The bytes may end inside a character."""

    def text(self, token: int) -> str:
        """Return the token's name in the model file, for example "<|im_end|>"."""

    def is_end(self, token: int) -> bool: ...

    def is_special(self, token: int) -> bool:
        """Return whether the token is a special token, whose `piece` is empty."""

    def special_tokens(self) -> Mapping[str, int]:
        """Return the special tokens, by the texts that `tokenize` recognises with `parse_special`."""


class Stopping(Protocol):
    """A rule that may end a proposal early. It sees confidences and never tokens, so it cannot bias the output."""

    def keeps(self, confidence: float, drafted: int) -> bool:
        """Return whether to verify the next token, after `drafted` draft tokens; if not, the proposal ends before it.

        `confidence` is `Draw.confidence`. It depends on q alone, so this decision does not bias the output.
        """

    def goes_on(self, drafted: int) -> bool:
        """Return whether the draft model should run again after `drafted` draft tokens."""


class Rule(Protocol):
    """The rule by which draft tokens are drawn and the target judges them (see verification.py)."""

    @property
    def name(self) -> str: ...

    def draw(self, row: ComingRow, history: Sequence[int], start: int) -> Draw:
        """Draw a token to follow `history` from the draft model's row.

        `start`: length of the text where the proposal begins. The random number depends on `start`: after a rejection
        the next cycle needs a new number, because the old one influenced the rejection.
        """

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        """Judge a proposal that follows `history`; rows[i] is the target's row after i draft tokens."""


class Backlog(NamedTuple):
    """How many tokens of a text a drafter has still to read, has in its cache, and has left out."""

    unread: int = 0  # number of newest tokens that the drafter must prefill before it can propose
    held: int = 0  # number of tokens in the drafter's cache
    older: int = 0  # number of tokens before the cached ones that would still fit into the cache

    @property
    def window(self) -> int:
        return self.unread + self.held


class Drafter:
    """A drafter proposes tokens and observes every batch of the target, prompts included.

    It lives as long as its target and serves one reply after the other. A new kind defines `source`, `propose`,
    `observe` and `model_runs`. The other methods have defaults for a drafter without a model.
    """

    source: Source  # the kind of drafter, and the key of its stored costs
    hidden_rows_needed: HiddenRows | None = None  # the target's hidden rows that the drafter reads
    failure: LocalspecError | None = None  # an error that ends its proposals for this reply

    @property
    def busy_seconds(self) -> float:
        """The total time inside the draft model."""
        return 0.0

    def model_runs(self, depth: int) -> int:
        """Return the number of model runs for `depth` tokens: `depth`, 1 if one run drafts all, 0 without a model."""
        return 0

    def warm_up(self, batches: Sequence[Sequence[int]]) -> None:
        """Run the model on batches of tokens to warm it up or time it, then drop the tokens. Raises decoding errors."""

    def begin(self) -> None:
        """Begin another reply, and forget the failure of the previous reply."""
        self.failure = None

    def begin_whole(self) -> None:
        """Begin a reply whose drafts must not depend on what the drafter has read for earlier replies."""
        self.begin()

    def observe(self, batch: ForwardPass, kept: int) -> None:
        """Update the drafter: the text now ends with the first `kept` tokens of this batch.

        This is called after every batch of the target. If the text was only shortened, the batch is empty.
        """

    def backlog(self, tokens: Sequence[int]) -> Backlog:
        return Backlog()

    def read(self, tokens: Sequence[int], most: int) -> int:
        """Prefill at most `most` unread tokens, the oldest first; return the number of prefilled tokens."""
        return 0

    def restart(self, tokens: Sequence[int], window: int) -> None:
        """Empty the cache. The next prefill begins `window` tokens before the newest one."""

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        """Return a proposal of at most `limit` tokens to follow `tokens`; `stopping` may end it earlier."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PlainStep:
    seconds: float | None = None  # time of the step; None while unknown
    replies: int = 1  # number of replies that share the step


class Strategy:
    """A strategy chooses the drafter and the draft depth of each cycle."""

    @property
    def busy_seconds(self) -> float:
        """The total time inside draft models."""
        return 0.0

    @property
    def why_off(self) -> str | None:
        """A sentence for the user if drafting is off because it saves no time; else None."""
        return None

    @property
    def failure(self) -> LocalspecError | None:
        return None

    @property
    def plain_step(self) -> PlainStep:
        return PlainStep()

    def sync(self, tokens: Sequence[int]) -> Iterator[None]:
        """Let drafters prefill a prompt in chunks, before the first cycle. Stop iterating to cancel."""
        return iter(())

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        """Return a proposal of at most `room` tokens to follow `tokens`; an empty one means plain decoding."""
        raise NotImplementedError

    def prepare(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Do preparatory work that needs no rows, while a device computes the rows to verify."""

    def observe(self, batch: ForwardPass, kept: int) -> None:
        """Let the drafters observe a batch: see `Drafter.observe`."""

    def learn_prefill(self, batch: ForwardPass, seconds: float) -> None:
        """Learn the time of the target's pass over a part of the prompt."""

    def learn(self, cycle: Cycle) -> None:
        """Learn from the acceptance and the time of the latest cycle."""
