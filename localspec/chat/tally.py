"""Absorbs the cycles of a run into its counts; no clock and no I/O."""

from collections import Counter
from dataclasses import dataclass, field, fields

from localspec.control.timing import PlainClock
from localspec.events import Cycle, Mode, Origin, Source, Stats, stood_still

LEAST_CYCLES = 8  # of fewer, one can take half of the time without a stop
_DRAFTING = (Source.MODEL, Source.HEAD, Source.LOOKUP, Source.PREDICTION)


@dataclass(slots=True)
class Tally:
    """Absorbs cycles; `stats()` is the frozen view."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    restored_tokens: int = 0
    restore_seconds: float = 0.0
    waited_seconds: float = 0.0
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
    cycles: int = 0
    replies_in_passes: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    draft_reading_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    longest_seconds: float = 0.0  # of a cycle
    plain: PlainClock = field(default_factory=PlainClock)
    by_source: Counter[Source] = field(default_factory=Counter)
    predicted: int = 0
    switch_offs: int = 0
    _mode: Mode | None = None

    def add(self, cycle: Cycle) -> None:
        """Count one more cycle."""
        self.cycles += 1
        self.replies_in_passes += cycle.replies
        self.emitted += len(cycle.tokens)
        self.drafted += cycle.drafted
        self.accepted += cycle.accepted
        self.draft_seconds += cycle.draft_seconds
        self.draft_reading_seconds += cycle.reading_seconds
        self.verify_seconds += cycle.verify_seconds
        self.other_seconds += cycle.other_seconds
        self.waited_seconds += cycle.waited_seconds
        while len(self.drafted_by_position) < cycle.drafted:
            self.drafted_by_position.append(0)
            self.accepted_by_position.append(0)
        for position in range(cycle.drafted):
            self.drafted_by_position[position] += 1
            self.accepted_by_position[position] += position < cycle.accepted
        self._add_sources(cycle)
        self._add_times(cycle)
        self._add_mode(cycle)

    def _add_sources(self, cycle: Cycle) -> None:
        self.predicted += cycle.drafted if cycle.source is Source.PREDICTION else 0
        for origin in cycle.origins:
            if origin is Origin.ACCEPTED:
                self.by_source[cycle.source] += 1
            elif origin is Origin.FORCED:
                self.by_source[Source.FORCED] += 1

    def _add_times(self, cycle: Cycle) -> None:
        self.longest_seconds = max(self.longest_seconds, cycle.seconds)
        if cycle.mode is Mode.ANCHOR and cycle.is_plain:
            self.plain.add_anchor(cycle.seconds - cycle.deciding_seconds)
        elif cycle.is_plain:
            self.plain.add_plain(cycle.seconds - cycle.deciding_seconds)
        else:
            self.plain.add_drafted(len(cycle.tokens), cycle.width, cycle.verify_seconds)

    def _add_mode(self, cycle: Cycle) -> None:
        if cycle.source in (Source.LOOKUP, Source.PREDICTION):
            return  # says nothing of the draft model, which may be off all the while
        before, self._mode = self._mode, cycle.mode
        self.switch_offs += cycle.mode is Mode.OFF and before in (Mode.DRAFTING, Mode.ANCHOR)

    def stats(self) -> Stats:
        """The counts so far."""
        seconds = self.draft_seconds + self.verify_seconds + self.other_seconds
        is_judged = self.cycles < LEAST_CYCLES or not stood_still(self.longest_seconds, seconds)
        found = {f.name: getattr(self, f.name) for f in fields(Stats) if hasattr(self, f.name)}
        found |= {f"from_{source}": self.by_source[source] for source in _DRAFTING}
        found |= {
            "drafted_by_position": tuple(self.drafted_by_position),
            "accepted_by_position": tuple(self.accepted_by_position),
            "from_grammar": self.by_source[Source.FORCED],
            "plain_seconds": self.plain.seconds if is_judged else 0.0,
            "plain_error_seconds": self.plain.error,
        }
        return Stats(**found)
