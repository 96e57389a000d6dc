"""Counts of a run, and the rates that follow from them; no clock and no I/O."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.events import Cycle


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
    draft_seconds: float = 0.0  # inside llama.cpp, draft model
    verify_seconds: float = 0.0  # inside llama.cpp, target model
    other_seconds: float = 0.0  # everything else in the decode loop

    @property
    def decode_seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.other_seconds

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / decode seconds, prefill left out. 0 before the first token."""
        return self.emitted / self.decode_seconds if self.decode_seconds else 0.0

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
        return tuple(kept / tried for kept, tried in zip(self.accepted_by_position, self.drafted_by_position, strict=True))


@dataclass(slots=True)
class Tally:
    """Absorbs cycles; `stats()` is the frozen view."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_seconds: float = 0.0
    cycles: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)

    def add(self, cycle: "Cycle") -> None:
        self.cycles += 1
        self.emitted += len(cycle.tokens)
        self.drafted += cycle.drafted
        self.accepted += cycle.accepted
        self.draft_seconds += cycle.draft_seconds
        self.verify_seconds += cycle.verify_seconds
        self.other_seconds += cycle.other_seconds
        while len(self.drafted_by_position) < cycle.drafted:
            self.drafted_by_position.append(0)
            self.accepted_by_position.append(0)
        for position in range(cycle.drafted):
            self.drafted_by_position[position] += 1
            self.accepted_by_position[position] += position < cycle.accepted

    def stats(self) -> Stats:
        return Stats(
            cycles=self.cycles,
            emitted=self.emitted,
            drafted=self.drafted,
            accepted=self.accepted,
            drafted_by_position=tuple(self.drafted_by_position),
            accepted_by_position=tuple(self.accepted_by_position),
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            prefill_seconds=self.prefill_seconds,
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            other_seconds=self.other_seconds,
        )
