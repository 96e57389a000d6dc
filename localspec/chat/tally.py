"""Adds up the cycles of a reply to its statistics."""

from collections import Counter
from dataclasses import dataclass, field, fields

from localspec.control.timing import PlainClock
from localspec.events import Cycle, Mode, Origin, Source, Stats, stalled

LEAST_CYCLES = 8  # with fewer cycles, a normal one may take half of a reply's time, so no stall is reported
_DRAFTING = (Source.MODEL, Source.HEAD, Source.LOOKUP, Source.PREDICTION)


@dataclass(slots=True)
class Tally:
    prompt_tokens: int = 0
    reused_tokens: int = 0
    restored_tokens: int = 0
    restore_seconds: float = 0.0
    read_ahead_tokens: int = 0
    waited_seconds: float = 0.0
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
    cycles: int = 0
    replies_in_passes: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    draft_prefill_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    deciding_seconds: float = 0.0
    wide_cycles: int = 0
    wide_seconds: float = 0.0
    drafted_by_position: Counter[int] = field(default_factory=Counter)
    accepted_by_position: Counter[int] = field(default_factory=Counter)
    longest_seconds: float = 0.0  # seconds of the longest cycle
    plain: PlainClock = field(default_factory=PlainClock)
    by_source: Counter[Source] = field(default_factory=Counter)
    predicted: int = 0
    switch_offs: int = 0
    thinking_cut: bool = False
    _mode: Mode | None = None

    def add(self, cycle: Cycle) -> None:
        self.cycles += 1
        self.replies_in_passes += cycle.replies
        self.emitted += len(cycle.tokens)
        self.drafted += cycle.drafted
        self.accepted += cycle.accepted
        self.draft_seconds += cycle.draft_seconds
        self.draft_prefill_seconds += cycle.prefill_seconds
        self.verify_seconds += cycle.verify_seconds
        self.other_seconds += cycle.other_seconds
        self.deciding_seconds += cycle.deciding_seconds
        if not cycle.is_plain:
            self.wide_cycles += 1
            self.wide_seconds += cycle.verify_seconds
        self.waited_seconds += cycle.waited_seconds
        self.drafted_by_position.update(range(cycle.drafted))
        self.accepted_by_position.update(range(min(cycle.accepted, cycle.drafted)))
        self.predicted += cycle.drafted if cycle.source is Source.PREDICTION else 0
        self.by_source[cycle.source] += cycle.origins.count(Origin.ACCEPTED)
        self.by_source[Source.FORCED] += cycle.origins.count(Origin.FORCED)
        self.longest_seconds = max(self.longest_seconds, cycle.seconds)
        if cycle.mode is Mode.BASELINE and cycle.is_plain:
            self.plain.add(1, cycle.seconds - cycle.deciding_seconds)
        elif cycle.is_plain:
            self.plain.add_plain(cycle.seconds - cycle.deciding_seconds)
        else:
            self.plain.add(len(cycle.tokens))
        if cycle.source not in (Source.LOOKUP, Source.PREDICTION):  # they need no draft model
            before, self._mode = self._mode, cycle.mode
            self.switch_offs += cycle.mode is Mode.OFF and before in (Mode.DRAFTING, Mode.BASELINE)

    def stats(self) -> Stats:
        seconds = self.draft_seconds + self.verify_seconds + self.other_seconds
        is_judged = self.cycles < LEAST_CYCLES or not stalled(self.longest_seconds, seconds)
        found = {f.name: getattr(self, f.name) for f in fields(Stats) if hasattr(self, f.name)}
        found |= {f"from_{source}": self.by_source[source] for source in _DRAFTING}
        positions = range(len(self.drafted_by_position))
        found |= {
            "drafted_by_position": tuple(self.drafted_by_position[n] for n in positions),
            "accepted_by_position": tuple(self.accepted_by_position[n] for n in positions),
            "from_grammar": self.by_source[Source.FORCED],
            "plain_seconds": self.plain.seconds if is_judged else 0.0,
            "plain_error_seconds": self.plain.error,
        }
        return Stats(**found)
