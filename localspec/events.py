"""Frozen values that cross every boundary: the reports of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CONFIDENT = 1.96  # standard errors on each side of a 95 % interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def stood_still(longest_seconds: float, all_seconds: float) -> bool:
    """Whether one cycle took so much of a reply that the machine stood still in it, as after Ctrl-Z."""
    return longest_seconds > (all_seconds - longest_seconds) / 2


@dataclass(frozen=True, slots=True, repr=False)
class Stats:
    """The cost of one reply and the gain of speculation, for example `speedup` and `acceptance_rate`."""

    cycles: int = 0  # target passes after the prefill
    replies_in_passes: int = 0  # the replies that shared each of these passes, added up
    emitted: int = 0  # tokens
    drafted: int = 0  # draft tokens proposed
    accepted: int = 0  # draft tokens kept
    drafted_by_position: tuple[int, ...] = ()  # cycles that proposed at least i+1 tokens
    accepted_by_position: tuple[int, ...] = ()  # cycles that kept at least i+1 tokens
    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens found in the cache
    restored_tokens: int = 0  # of these: from the disk
    restore_seconds: float = 0.0  # that the disk took for them
    waited_seconds: float = 0.0  # for a free lane and for prompts of others; decode seconds have none of it
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0  # from the request on
    draft_seconds: float = 0.0  # inside llama.cpp, draft model
    draft_reading_seconds: float = 0.0  # of these: reading the text
    verify_seconds: float = 0.0  # inside llama.cpp, target model
    other_seconds: float = 0.0  # everything else in the decode loop
    plain_seconds: float = 0.0  # what plain decoding would have taken, judged by the plain steps; 0: unknown
    plain_error_seconds: float = 0.0  # standard error of it
    from_model: int = 0  # emitted tokens that a draft model drafted
    from_head: int = 0  # emitted tokens that a prediction head drafted
    from_lookup: int = 0  # emitted tokens that lookup drafted
    from_prediction: int = 0  # emitted tokens drafted from the caller's prediction
    predicted: int = 0  # draft tokens proposed from there
    from_grammar: int = 0  # emitted tokens that a grammar forced
    switch_offs: int = 0  # times that drafting was switched off

    def __repr__(self) -> str:
        kept = f", {self.acceptance_rate:.0%} of guesses kept" if self.drafted else ""
        faster = f", {self.speedup.value:.2f}x plain" if self.speedup else ""
        return f"Stats({self.emitted} tokens, {self.tokens_per_second:.1f} tokens/s{kept}{faster})"

    @property
    def from_target(self) -> int:
        """Emitted tokens that the target chose itself: plain steps, fixes and bonus tokens."""
        drafted = self.from_model + self.from_head + self.from_lookup + self.from_prediction
        return self.emitted - drafted - self.from_grammar

    @property
    def speedup(self) -> Estimate | None:
        """Time of plain decoding / decode seconds, at most the mean accepted length; None while unknown.

        A pass takes at least the time of a plain step, so drafting gains no more than the tokens of a pass.
        """
        if not self.plain_seconds or not self.decode_seconds:
            return None
        value = self.plain_seconds / self.decode_seconds
        margin = CONFIDENT * self.plain_error_seconds / self.decode_seconds
        found = (value, max(value - margin, 0.0), value + margin)
        return Estimate(*(min(each, self.mean_accepted_length) for each in found))

    @property
    def saved_seconds(self) -> float | None:
        """Time of plain decoding - decode seconds; negative if drafting lost; None while unknown."""
        return (self.speedup.value - 1) * self.decode_seconds if self.speedup else None

    @property
    def decode_seconds(self) -> float:
        """From the end of the prefill to the last token, without waits: draft, verify and other seconds."""
        return self.draft_seconds + self.verify_seconds + self.other_seconds

    @property
    def replies_at_once(self) -> float:
        """The mean number of replies in a target pass, this one included. 1.0 before the first pass."""
        return self.replies_in_passes / self.cycles if self.cycles else 1.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / decode seconds, prefill left out. 0 before the first token."""
        return self.emitted / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def prefill_share(self) -> float:
        """Prefill seconds / all seconds: the part of a reply that speculation cannot make faster."""
        whole = self.prefill_seconds + self.decode_seconds
        return self.prefill_seconds / whole if whole else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens. 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Emitted tokens / target passes, fix and bonus included; 1.0 is plain decoding."""
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """For each depth: cycles that kept at least this number of tokens / cycles that proposed it."""
        return tuple(
            kept / tried
            for kept, tried in zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        )


class Origin(StrEnum):
    """The fate of an emitted token."""

    PLAIN = "plain"  # decoded with no proposal
    ACCEPTED = "accepted"  # a draft token that the target kept
    FIX = "fix"  # the target's replacement for a rejected draft token
    BONUS = "bonus"  # the target's extra token after a proposal that was kept whole
    FORCED = "forced"  # the only token that a grammar allowed


class Source(StrEnum):
    """The source of a cycle's tokens."""

    PLAIN = "plain"  # nobody: plain decoding
    MODEL = "model"
    HEAD = "head"
    LOOKUP = "lookup"
    PREDICTION = "prediction"
    FORCED = "forced"


class Mode(StrEnum):
    """Why a cycle drafts, or does not."""

    DRAFTING = "drafting"  # drafting is on, and as many tokens were proposed as pay
    ANCHOR = "anchor"  # a plain step, to know what plain decoding costs here
    OFF = "off"  # drafting does not pay: plain decoding
    PLAIN = "plain"  # nobody was asked to draft
    PROBE = "probe"  # drafting is off; a look whether it pays again


class Kind(StrEnum):
    """Which part of a reply a piece of text belongs to."""

    ANSWER = "answer"
    REASONING = "reasoning"
    TOOL_CALL = "tool call"


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"  # an end-of-generation token or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins: its prompt and its settings."""

    target: str
    draft: str  # "" when there is no draft model
    prompt_tokens: int
    reused_tokens: int  # leading prompt tokens that the cache already held
    trimmed_messages: int  # oldest messages left out so that the rest fits
    seed: int
    rule: str
    context_length: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Part of the prompt has been read."""

    done: int  # tokens
    total: int  # tokens
    seconds: float  # of reading so far


@dataclass(frozen=True, slots=True)
class Cycle:
    """One draft-verify cycle: the proposal, its outcome, and the time."""

    # Emitted, in order; the last one is the target's own choice unless the reply ended before
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]  # one for each emitted token
    # Drafted tokens, the rejected ones too; those that a grammar forces are not drafted
    proposal: tuple[int, ...]
    accepted: int  # leading proposal tokens that the target kept
    depth: int  # how many tokens the depth control allowed
    source: Source
    width: int  # tokens in the verify batch
    draft_seconds: float  # inside llama.cpp, draft model
    verify_seconds: float  # inside llama.cpp, target model
    other_seconds: float  # everything else between entry and emit
    mode: Mode = Mode.DRAFTING
    reading_seconds: float = 0.0  # of the draft seconds: reading text that drafting needs
    deciding_seconds: float = 0.0  # of the other seconds: deciding what to propose
    replies: int = 1  # that shared the pass of the target
    pass_width: int = 0  # tokens of that whole pass; 0: those of the verify batch
    waited_seconds: float = 0.0  # for prompts of other replies, beside the other seconds

    @property
    def drafted(self) -> int:
        """How many tokens were proposed."""
        return len(self.proposal)

    @property
    def is_plain(self) -> bool:
        """Whether this was a step of plain decoding: no reply of its pass proposed, or drew and dropped."""
        return self.width == 1 and not self.draft_seconds and self.pass_width <= self.replies

    @property
    def seconds(self) -> float:
        """How long the whole cycle took, without waits for prompts of others."""
        return self.draft_seconds + self.verify_seconds + self.other_seconds


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is ready to show, with the origin of the token that completed it."""

    text: str
    kind: Kind
    origin: Origin
    source: Source
    call: "ToolCall | None" = None  # begins here: its name and id; the text is that of its arguments, as JSON


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The target's probability of a token, before the sampler chain."""

    token: int
    piece: tuple[int, ...]  # its bytes
    logprob: float  # natural logarithm of its probability


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of the answer, and the likeliest ones in its place."""

    chosen: Likelihood
    alternatives: tuple[Likelihood, ...]  # the likeliest first


@dataclass(frozen=True, slots=True)
class Scores:
    """The tokens that the last cycle added to the answer; only where logprobs were asked for."""

    tokens: tuple[Scored, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence that the user should see, for example why drafting is off."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model asks to be called."""

    name: str
    arguments: Mapping[str, Any]  # as JSON knows them
    id: str  # for the message that brings the result
    unreadable: str = ""  # in a history: arguments that are no JSON object (a call that was cut)


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    """A finished reply: `text` or str() is the answer, `stats` its cost."""

    text: str  # the answer, without reasoning
    reasoning: str
    tokens: tuple[int, ...]  # every emitted token, an end-of-generation token included
    seed: int
    finish_reason: FinishReason
    stats: Stats
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_tokens: int = 0
    stopped_by: str = ""  # the stop string that ended it
    unmatched: str = ""  # why the answer does not match its schema, expression or grammar

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        return f"Reply({text!r}, {self.finish_reason.value}, {self.stats!r})"


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every run."""

    reply: Reply


Event = Started | Prefill | Cycle | Scores | Piece | Notice | Finished
