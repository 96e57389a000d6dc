"""Counts of a run, and the rates that follow from them; no clock and no I/O."""

from dataclasses import dataclass

from localspec.timing import Estimate, Percentiles

CONFIDENT = 1.96  # standard errors on each side of a 95 % interval


@dataclass(frozen=True, slots=True)
class Stats:
    """What one reply cost and what speculation contributed (definitions: docs/metrics.md)."""

    cycles: int = 0  # target passes after the prefill
    emitted: int = 0  # tokens
    drafted: int = 0  # draft tokens proposed
    accepted: int = 0  # draft tokens kept
    drafted_by_position: tuple[int, ...] = ()  # cycles that proposed at least i+1 tokens
    accepted_by_position: tuple[int, ...] = ()  # cycles that kept at least i+1 tokens
    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens found in the cache
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
    from_prediction: int = 0  # emitted tokens that were drafted from what the caller predicted
    predicted: int = 0  # draft tokens proposed from there
    from_grammar: int = 0  # emitted tokens that a grammar forced
    cycles_by_depth: tuple[int, ...] = ()  # cycles that proposed 0, 1, 2, ... tokens
    probes: int = 0  # times that drafting was tried again while it was off
    switch_offs: int = 0  # times that drafting was switched off
    cycle_seconds: Percentiles = Percentiles()  # noqa: RUF009  frozen
    token_gap_seconds: Percentiles = Percentiles()  # noqa: RUF009  the tokens of a cycle come at once

    @property
    def from_target(self) -> int:
        """Emitted tokens that the target chose itself: plain steps, fixes and bonus tokens."""
        drafted = self.from_model + self.from_head + self.from_lookup + self.from_prediction
        return self.emitted - drafted - self.from_grammar

    @property
    def speedup(self) -> Estimate | None:
        """What plain decoding would have taken / decode seconds; None while that is unknown."""
        if not self.plain_seconds or not self.decode_seconds:
            return None
        value = self.plain_seconds / self.decode_seconds
        margin = CONFIDENT * self.plain_error_seconds / self.decode_seconds
        return Estimate(value, max(value - margin, 0.0), value + margin)

    @property
    def saved_seconds(self) -> float | None:
        """What plain decoding would have taken more; negative when drafting lost; None while unknown."""
        return self.plain_seconds - self.decode_seconds if self.plain_seconds else None

    @property
    def decode_seconds(self) -> float:
        """From the end of the prefill to the last token: draft, verify and other seconds."""
        return self.draft_seconds + self.verify_seconds + self.other_seconds

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
        """For each depth, cycles that kept at least so many tokens / cycles that proposed as many."""
        return tuple(
            kept / tried
            for kept, tried in zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        )
