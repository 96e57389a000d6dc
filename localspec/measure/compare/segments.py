"""Drafting by kind of text: code and JSON are guessed better than free text, and one number hides that."""

from dataclasses import dataclass, replace

from localspec.events import Cycle, Event, Kind, Origin, Piece

FENCE = "```"
OPENERS = ("{", "[")  # a reply that begins so is JSON from end to end


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of one kind of text."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0  # by a grammar

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens. 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def with_cycle(self, cycle: Cycle) -> "Segment":
        """This segment and the tokens of one more cycle."""
        return replace(
            self,
            tokens=self.tokens + len(cycle.tokens),
            drafted=self.drafted + cycle.drafted,
            accepted=self.accepted + cycle.accepted,
            forced=self.forced + cycle.origins.count(Origin.FORCED),
        )


class Segments:
    """Sorts the cycles of a reply by the text in which they begin."""

    def __init__(self) -> None:
        self.free = Segment()
        self.structured = Segment()
        self._answer = ""

    def absorb(self, event: Event) -> None:
        match event:
            case Cycle() if is_structured(self._answer) or Origin.FORCED in event.origins:
                self.structured = self.structured.with_cycle(event)
            case Cycle():
                self.free = self.free.with_cycle(event)
            case Piece(text=text, kind=Kind.ANSWER):
                self._answer += text


def is_structured(text: str) -> bool:
    """Whether what follows this text is in a code block, or in a reply that is JSON."""
    return text.count(FENCE) % 2 == 1 or text.lstrip().startswith(OPENERS)
