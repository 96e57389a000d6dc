"""A reply while it is generated: takes in events, answers what the screen wants to show. No clock."""

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

from localspec import events
from localspec.chat.tally import Tally
from localspec.conversations import Numbers, StoredMessage
from localspec.engine.messages import ProposalText
from localspec.events import Cycle, Event, Kind, Mode, Origin, Piece, Prefill, Reply, Source, Started, Stats

BARS: Final = 32  # cycles in the meter
TIMELINE: Final = 256  # cycles in the inspector
WINDOW_SECONDS: Final = 1.0  # of engine time: what "now" means


@dataclass(slots=True)
class ReplyState:
    """Everything that is known of the reply so far."""

    serial: int
    beginning: str = ""  # the given beginning of the reply
    started: Started | None = None
    prefill: Prefill | None = None
    answer: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    fresh: list[Piece] = field(default_factory=list)  # not shown yet
    tally: Tally = field(default_factory=Tally)
    timeline: deque[Cycle] = field(default_factory=lambda: deque(maxlen=TIMELINE))
    lengths: Counter[int] = field(default_factory=Counter)  # emitted tokens -> cycles
    proposal: tuple[str, ...] = ()  # the last cycle's drafted tokens as text
    final: Stats | None = None  # the engine's own numbers, once the reply is over

    def __post_init__(self) -> None:
        if self.beginning:
            self.absorb(Piece(self.beginning, Kind.ANSWER, Origin.PLAIN, Source.PLAIN))

    def absorb(self, event: Event | ProposalText) -> None:
        match event:
            case Piece():
                self.fresh.append(event)
                (self.reasoning if event.kind is Kind.REASONING else self.answer).append(event.text)
            case Cycle():
                self.tally.add(event)
                self.timeline.append(event)
                self.lengths[len(event.tokens)] += 1
                self.proposal = ()
            case ProposalText():
                self.proposal = event.texts
            case Prefill():
                self.prefill = event
            case Started():
                self.started = event
            case events.Notice() | events.Finished():
                pass  # the screen shows the one and takes the reply from the other

    def take_fresh(self) -> list[Piece]:
        """The pieces since the last call."""
        fresh, self.fresh = self.fresh, []
        return fresh

    @property
    def stats(self) -> Stats:
        return self.final or self.tally.stats()

    @property
    def is_off(self) -> bool:
        """Whether drafting is switched off right now because it does not pay."""
        return bool(self.timeline) and self.timeline[-1].mode in (Mode.OFF, Mode.PROBE)

    @property
    def speed_now(self) -> float:
        """Tokens per second over the last second of engine time."""
        tokens, seconds = 0, 0.0
        for cycle in reversed(self.timeline):
            tokens += len(cycle.tokens)
            seconds += cycle.seconds
            if seconds >= WINDOW_SECONDS:
                break
        return tokens / seconds if seconds else 0.0

    @property
    def acceptance(self) -> list[float]:
        """For each of the last cycles that drafted, the share that was kept."""
        recent = list(self.timeline)[-BARS:]
        return [cycle.accepted / cycle.drafted for cycle in recent if cycle.drafted]

    @property
    def depth(self) -> int:
        """How many tokens the last cycles that drafted have drafted: the middle one of them."""
        return median_low([cycle.drafted for cycle in list(self.timeline)[-BARS:] if cycle.drafted] or [0])

    @property
    def rejected(self) -> tuple[str, ...]:
        """The tokens of the last proposal that the target did not keep, as text."""
        return self.proposal[self.timeline[-1].accepted :] if self.timeline else ()

    @property
    def context_tokens(self) -> int:
        """Tokens of the context that are in use."""
        return (self.started.prompt_tokens if self.started else 0) + self.tally.emitted

    def message(self, outcome: str, reply: Reply | None = None) -> StoredMessage:
        """The reply as the conversation keeps it; without a Reply (the engine died) as far as it got."""
        stats = reply.stats if reply else self.stats
        return StoredMessage(
            role="assistant",
            content=self.beginning + reply.text if reply else "".join(self.answer),
            reasoning=reply.reasoning if reply else "".join(self.reasoning),
            reasoning_tokens=len(self.reasoning),
            outcome=outcome,
            numbers=Numbers.of(stats) if stats.emitted else None,
        )
