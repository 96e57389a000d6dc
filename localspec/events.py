"""The events of a run and the statistics of a reply, as frozen values."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import zip_longest
from operator import attrgetter
from typing import Any

NOTICEABLE = 1.03  # a smaller ratio of the faster to the slower speed counts as no difference
HARDLY = 0.03  # with fewer draft tokens per emitted token, drafting cannot change the speed noticeably
LEAST_JUDGED = 32  # the speed of a reply with fewer tokens is not judged
LEAST_CYCLES = 8  # no stall is reported for fewer cycles, because a normal cycle may take half of their time
DEMO_PASS = 0.05  # a race counts this many seconds for a demo pass, because a real one is too short to watch


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value with a 95 % confidence interval."""

    value: float
    low: float
    high: float


def stalled(longest_seconds: float, all_seconds: float) -> bool:
    """Return whether the machine stalled: the longest cycle took over a third of the time of all cycles."""
    return longest_seconds > (all_seconds - longest_seconds) / 2


@dataclass(frozen=True, slots=True, repr=False)
class Stats:
    """The statistics of one reply: numbers of tokens and passes, times in seconds, and the gain from drafting."""

    cycles: int = 0  # forward passes of the target after the prefill
    replies_in_passes: int = 0  # replies that shared each forward pass, summed over the passes
    emitted: int = 0  # emitted tokens, an end-of-generation token included
    drafted: int = 0  # proposed draft tokens
    accepted: int = 0  # accepted draft tokens
    drafted_by_position: tuple[int, ...] = ()  # element i: number of cycles that proposed more than i tokens
    accepted_by_position: tuple[int, ...] = ()  # element i: number of cycles that accepted more than i tokens
    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens left out of the prefill, because a cache has them
    restored_tokens: int = 0  # reused tokens that came from a prompt cache on disk
    restore_seconds: float = 0.0  # time of reading the restored tokens from the disk
    read_ahead_tokens: int = 0  # reused tokens that were prefilled before the request, while nobody waited
    waited_seconds: float = 0.0  # time of waiting for a slot and for others' passes; not in decode_seconds
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0  # time from the request to the first token
    draft_seconds: float = 0.0  # time inside llama.cpp for the draft
    draft_prefill_seconds: float = 0.0  # part of draft_seconds: the draft's prefill
    verify_seconds: float = 0.0  # time inside llama.cpp for the target, without the prefill
    other_seconds: float = 0.0  # rest of the time after the prefill: sampling, verification, text
    deciding_seconds: float = 0.0  # part of other_seconds: choosing the drafter and depth
    wide_cycles: int = 0  # cycles that are no plain steps
    wide_seconds: float = 0.0  # part of verify_seconds: passes of cycles that are no plain steps
    plain_seconds: float = 0.0  # estimated time of the same reply by plain decoding; 0.0: unknown
    plain_error_seconds: float = 0.0  # standard error of plain_seconds
    from_model: int = 0  # emitted tokens that a draft model drafted
    from_head: int = 0  # emitted tokens that a prediction head drafted
    from_lookup: int = 0  # emitted tokens that lookup drafted
    from_prediction: int = 0  # emitted tokens that were drafted from the caller's prediction
    predicted: int = 0  # draft tokens proposed from the caller's prediction
    from_grammar: int = 0  # emitted tokens that a grammar or a thinking budget forced
    switch_offs: int = 0  # number of times that drafting was switched off because it was slower
    thinking_cut: bool = False  # whether the reasoning spent its budget and was ended

    def __repr__(self) -> str:
        kept = f", acceptance rate {self.acceptance_rate:.0%}" if self.drafted else ""
        faster = f", {self.speedup.value:.2f}x plain" if self.speedup else ""
        return f"Stats({self.emitted} tokens, {self.tokens_per_second:.1f} tokens/s{kept}{faster})"

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*map(_sum, _values(self), _values(other)))

    def after(self, *cycles: "Cycle") -> "Stats":
        """Return the statistics with these cycles added. Only `Tally` changes `plain_seconds` and `switch_offs`."""
        wide = [cycle for cycle in cycles if not cycle.is_plain]
        kept = [(cycle.drafted, min(cycle.accepted, cycle.drafted)) for cycle in cycles if cycle.drafted]
        places = range(max((drafted for drafted, _ in kept), default=0))
        by_drafter: dict[str, Any] = Counter()
        for cycle in cycles:
            if cycle.source not in (Source.PLAIN, Source.FORCED):
                by_drafter[f"from_{cycle.source}"] += cycle.origins.count(Origin.ACCEPTED)
        return self + Stats(
            cycles=len(cycles),
            replies_in_passes=sum(cycle.replies for cycle in cycles),
            emitted=sum(len(cycle.tokens) for cycle in cycles),
            drafted=sum(drafted for drafted, _ in kept),
            accepted=sum(cycle.accepted for cycle in cycles),
            drafted_by_position=tuple(sum(drafted > place for drafted, _ in kept) for place in places),
            accepted_by_position=tuple(sum(accepted > place for _, accepted in kept) for place in places),
            waited_seconds=sum(cycle.waited_seconds for cycle in cycles),
            draft_seconds=sum(cycle.draft_seconds for cycle in cycles),
            draft_prefill_seconds=sum(cycle.prefill_seconds for cycle in cycles),
            verify_seconds=sum(cycle.verify_seconds for cycle in cycles),
            other_seconds=sum(cycle.other_seconds for cycle in cycles),
            deciding_seconds=sum(cycle.deciding_seconds for cycle in cycles),
            wide_cycles=len(wide),
            wide_seconds=sum(cycle.verify_seconds for cycle in wide),
            predicted=sum(cycle.drafted for cycle in cycles if cycle.source is Source.PREDICTION),
            from_grammar=sum(cycle.origins.count(Origin.FORCED) for cycle in cycles),
            **by_drafter,
        )

    @property
    def from_target(self) -> int:
        """The number of emitted tokens that the target chose: plain tokens, fixes and bonus tokens."""
        drafted = self.from_model + self.from_head + self.from_lookup + self.from_prediction
        return self.emitted - drafted - self.from_grammar

    @property
    def speedup(self) -> Estimate | None:
        """`plain_seconds` / `decode_seconds`, as far as drafting can have caused it.

        None if unknown, or for a reply of fewer than LEAST_JUDGED tokens.
        """
        if not self.plain_seconds or not self.decode_seconds or self.emitted < LEAST_JUDGED:
            return None
        value = self.plain_seconds / self.decode_seconds
        margin = 1.96 * self.plain_error_seconds / self.decode_seconds  # a 95 % interval
        return Estimate(*map(self.caused, (value, max(value - margin, 0.0), value + margin)))

    def caused(self, ratio: float) -> float:
        """Return a measured speed-up, limited to the range that drafting can have caused.

        At best, a pass replaces one plain pass for each token that it emits. At worst, drafting costs the time of the
        draft and of the decisions, and all time of wide passes beyond one plain pass each. The rest is plain decoding.
        """
        plain_tokens = self.emitted - self.wide_cycles
        if not self.decode_seconds or plain_tokens <= 0:
            return min(ratio, self.mean_accepted_length)
        rest = self.decode_seconds - self.draft_seconds - self.deciding_seconds - self.wide_seconds
        slowest = rest / self.decode_seconds * self.emitted / plain_tokens
        return min(max(ratio, slowest), self.mean_accepted_length)

    @property
    def saved_seconds(self) -> float | None:
        """The seconds that drafting saved; negative if drafting was slower, None if unknown."""
        return (self.speedup.value - 1) * self.decode_seconds if self.speedup else None

    @property
    def decode_seconds(self) -> float:
        """The time from the prefill to the last token, without waits: draft + verify + other seconds."""
        return self.draft_seconds + self.verify_seconds + self.other_seconds

    @property
    def replies_at_once(self) -> float:
        """The mean number of replies in a forward pass, this reply included; 1.0 before the first pass."""
        return self.replies_in_passes / self.cycles if self.cycles else 1.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / `decode_seconds`, which excludes the prefill; 0.0 before the first token."""
        return self.emitted / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def prefill_share(self) -> float:
        """The prefill's share of the time of prefill and decoding; drafting cannot shorten the prefill."""
        whole = self.prefill_seconds + self.decode_seconds
        return self.prefill_seconds / whole if whole else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed draft tokens; 0.0 if none were proposed."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def hardly_drafted(self) -> bool:
        """Whether too few draft tokens were proposed to make a noticeable difference from plain decoding."""
        return self.drafted <= HARDLY * self.emitted

    @property
    def mean_accepted_length(self) -> float:
        """Emitted tokens / forward passes of the target; 1.0 with plain decoding."""
        return self.emitted / self.cycles if self.cycles else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """The acceptance rate at each draft position: accepting cycles / proposing cycles."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(accepted / drafted for accepted, drafted in pairs)


_values = attrgetter(*(field.name for field in fields(Stats)))  # one call for all fields, which saves time


def _sum(one: Any, other: Any) -> Any:  # noqa: ANN401
    if isinstance(one, tuple):  # a tuple has a number for each draft position
        return tuple(map(sum, zip_longest(one, other, fillvalue=0)))
    return one or other if isinstance(one, bool) else one + other


class Origin(StrEnum):
    """The way in which an emitted token was chosen."""

    PLAIN = "plain"  # the target's token in a cycle without draft tokens
    ACCEPTED = "accepted"  # a draft token that the target accepted
    FIX = "fix"  # the target's replacement for a rejected draft token
    BONUS = "bonus"  # the target's extra token after a proposal that it accepted in full
    FORCED = "forced"  # the only token that a grammar or a thinking budget allowed


class Source(StrEnum):
    """The drafter that proposed a cycle's draft tokens."""

    PLAIN = "plain"  # no drafter: plain decoding
    MODEL = "model"
    HEAD = "head"
    LOOKUP = "lookup"
    PREDICTION = "prediction"
    FORCED = "forced"


class Mode(StrEnum):
    """The reason why a cycle drafts or does not."""

    DRAFTING = "drafting"  # drafting is on, at the draft depth that is fastest
    BASELINE = "baseline"  # a baseline step, which measures the cost of plain decoding
    OFF = "off"  # plain decoding, because drafting was slower and is off
    PLAIN = "plain"  # plain decoding is requested
    PROBE = "probe"  # drafting is off; this cycle drafts to test whether it is faster again


class Kind(StrEnum):
    """The part of a reply that a piece of text belongs to."""

    ANSWER = "answer"
    REASONING = "reasoning"
    TOOL_CALL = "tool call"


class FinishReason(StrEnum):
    """The reason why a reply ended."""

    STOP = "stop"  # an end-of-generation token or a stop string
    LENGTH = "length"  # max_tokens is reached, or the context is full
    CANCELLED = "cancelled"
    REPETITION = "repetition"  # the reply repeated itself, and the user's `stop_loops` ended it


@dataclass(frozen=True, slots=True)
class Started:
    """The beginning of a run, with the size of its prompt and its settings."""

    target: str
    draft: str  # name of the draft model; "" without one
    prompt_tokens: int
    reused_tokens: int  # number of leading prompt tokens left out of the prefill, because a cache has them
    trimmed_messages: int  # number of oldest messages dropped because the prompt did not fit
    seed: int
    rule: str
    context_length: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """The progress of the prefill."""

    done: int  # number of tokens decoded so far
    total: int  # number of tokens to decode
    seconds: float  # time of the prefill so far
    image_tokens: int = 0  # tokens of the image that is encoded now, which takes seconds on a CPU; 0: none


@dataclass(frozen=True, slots=True)
class Cycle:
    """One draft-verify cycle: the proposal, its outcome, and the time."""

    # Emitted tokens. The target chose the last one, unless the reply ended at a draft token or forced token
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]  # the origin of each emitted token
    # Draft tokens, including rejected ones; tokens forced by a grammar are not draft tokens
    proposal: tuple[int, ...]
    accepted: int  # number of leading draft tokens of the proposal that the target accepted
    depth: int  # largest draft depth that the depth control allowed
    source: Source
    width: int  # number of tokens of this reply in the verify batch
    draft_seconds: float  # time inside llama.cpp for the draft
    verify_seconds: float  # time inside llama.cpp for the target
    other_seconds: float  # rest of the cycle's time: sampling, verification, bookkeeping
    mode: Mode = Mode.DRAFTING
    prefill_seconds: float = 0.0  # part of draft_seconds: the draft's prefill
    deciding_seconds: float = 0.0  # part of other_seconds: choosing the drafter and depth
    replies: int = 1  # number of replies that shared the target's pass
    running: int = 1  # number of replies that ran during the pass
    pass_width: int = 0  # number of tokens of all replies in the pass; 0: the same as `width`
    waited_seconds: float = 0.0  # time of waiting for others' passes; not in other_seconds

    @property
    def drafted(self) -> int:
        """The number of proposed draft tokens."""
        return len(self.proposal)

    @property
    def is_plain(self) -> bool:
        """Whether the pass had one token for each reply, and no draft ran for this reply."""
        return self.width == 1 and not self.draft_seconds and self.pass_width <= self.replies

    @property
    def seconds(self) -> float:
        """The duration of the cycle, without waits for other replies' prefills."""
        return self.draft_seconds + self.verify_seconds + self.other_seconds


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is ready to show, with the origin and source of the token that completed it."""

    text: str
    kind: Kind
    origin: Origin
    source: Source
    # The tool call that begins with this piece; `text` is then a part of its arguments as JSON
    call: "ToolCall | None" = None


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A token's probability before the sampler chain; with `post_sampling_probs`, after the chain."""

    token: int
    piece: tuple[int, ...]  # the bytes of the token
    logprob: float  # natural logarithm of the probability


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of the answer, and the likeliest tokens at its position."""

    chosen: Likelihood
    alternatives: tuple[Likelihood, ...]  # the likeliest tokens in descending order of probability


@dataclass(frozen=True, slots=True)
class Scores:
    """The probabilities of the last cycle's tokens. This event comes only if logprobs are requested."""

    tokens: tuple[Scored, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence that the user should see, for example why drafting is off."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that the model requests."""

    name: str
    arguments: Mapping[str, Any]  # JSON values
    id: str  # the id that the message with the call's result repeats
    unreadable: str = ""  # the arguments as text, if the reply ended before their JSON object was complete


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
    cut_calls: tuple[ToolCall, ...] = ()  # calls that the reply did not finish, with their arguments so far
    reasoning_tokens: int = 0
    stopped_by: str = ""  # the stop string that ended the reply
    target: str = ""  # name of the model that answered
    unmatched: str = ""  # why the answer does not match its schema, regex or grammar; "": it matches

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        return f"Reply({text!r}, {self.finish_reason.value}, {self.stats!r}, target={self.target!r})"


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every run."""

    reply: Reply


Event = Started | Prefill | Cycle | Scores | Piece | Notice | Finished
