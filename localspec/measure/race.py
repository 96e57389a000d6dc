"""A race between plain decoding and drafting on one prompt, and its picture."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Unpack

from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from localspec.chat.session import Session
from localspec.events import Cycle, Finished, Origin, Reply
from localspec.options import ReplyOptions

STYLES = {
    Origin.ACCEPTED: "green",
    Origin.FIX: "underline yellow",
    Origin.BONUS: "bold cyan",
    Origin.PLAIN: "",
    Origin.FORCED: "reverse",
}
LEGEND = (
    ("guessed and kept", Origin.ACCEPTED),
    ("corrected by the target", Origin.FIX),
    ("bonus of the target", Origin.BONUS),
)
SVG_COLUMNS = 100
_WEB_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that count for each pass in place of the measured ones."""

    pass_seconds: float  # of the target, whatever its width
    draft_seconds: float  # more for each drafted token


@dataclass(frozen=True, slots=True)
class Lane:
    """One side of a race so far."""

    written: tuple[tuple[str, Origin], ...] = ()  # the tokens' texts
    seconds: float = 0.0  # of this side's own passes
    cycles: int = 0
    drafted: int = 0
    reply: Reply | None = None  # once it is whole

    @property
    def tokens_per_second(self) -> float:
        return len(self.written) / self.seconds if self.seconds else 0.0

    @property
    def kept(self) -> int:
        """Drafted tokens that the target kept."""
        return sum(origin is Origin.ACCEPTED for _, origin in self.written)


@dataclass(frozen=True, slots=True)
class Race:
    """Both sides so far."""

    plain: Lane = Lane()
    drafting: Lane = Lane()

    @property
    def seconds(self) -> float:
        return self.plain.seconds + self.drafting.seconds

    @property
    def speedup(self) -> float:
        """Seconds of plain decoding / those of drafting for the whole text. 0 while that is unknown."""
        done = self.plain.reply and self.drafting.reply and self.drafting.seconds
        return self.plain.seconds / self.drafting.seconds if done else 0.0

    @property
    def identical(self) -> bool:
        return [text for text, _ in self.plain.written] == [text for text, _ in self.drafting.written]


def race(
    plain: Session, drafting: Session, prompt: str, pace: Pace | None = None, **options: Unpack[ReplyOptions]
) -> Iterator[Race]:
    """Answer a prompt on both sessions, in turns of one cycle; the side whose clock is behind has the next turn."""
    asked = ReplyOptions(**options) | {"temperature": 0.0, "overflow": "error"}
    sessions = (plain, drafting)
    for session in sessions:
        session.reset()
    streams = (
        plain.stream(prompt, **asked | {"speculate": False}),
        drafting.stream(prompt, **asked | {"speculate": True}),
    )
    lanes = [Lane(), Lane()]
    while racing := [side for side in (0, 1) if lanes[side].reply is None]:
        side = min(racing, key=lambda side: lanes[side].seconds)
        for event in streams[side]:
            if isinstance(event, Finished):
                lanes[side] = replace(lanes[side], reply=event.reply)
            elif isinstance(event, Cycle):
                lanes[side] = _grown(lanes[side], event, sessions[side], pace)
                break
        yield Race(*lanes)


def _grown(lane: Lane, cycle: Cycle, session: Session, pace: Pace | None) -> Lane:
    vocabulary = session.pair.vocabulary
    texts = tuple(
        ("" if vocabulary.is_end(token) else session.text_of(token), origin)
        for token, origin in zip(cycle.tokens, cycle.origins, strict=True)
    )
    seconds = pace.pass_seconds + pace.draft_seconds * cycle.drafted if pace else cycle.seconds
    return replace(
        lane,
        written=lane.written + texts,
        seconds=lane.seconds + seconds,
        cycles=lane.cycles + 1,
        drafted=lane.drafted + cycle.drafted,
    )


def picture(race: Race, prompt: str, about: str, headline: str = "") -> RenderableType:
    """Both sides beside each other with their clocks; the colours' legend, the outcome and the models below."""
    sides = Table(box=ROUNDED, expand=True, show_footer=True, border_style="dim", title=f"> {prompt}")
    sides.title_style, sides.title_justify = "bold", "left"
    for title, lane in (("plain decoding", race.plain), ("with drafting", race.drafting)):
        done = " ✓" if lane.reply else ""
        clock = f"{lane.seconds:.1f} s · {len(lane.written)} tokens · {lane.cycles} passes{done}"
        sides.add_column(Text(title, "bold"), Text(clock, "bold" if done else ""), ratio=1)
    lanes = (race.plain, race.drafting)
    sides.add_row(*(Text.assemble(*((text, STYLES[by]) for text, by in lane.written)) for lane in lanes))
    legend = Text("   ").join(Text(f"■ {name}", STYLES[origin]) for name, origin in LEGEND)
    return Group(sides, legend, *[Text(headline, "bold")] * bool(headline), Text(about, "dim"))


def svg(race: Race, prompt: str, about: str, headline: str) -> str:
    """The picture as an SVG document that loads no font from elsewhere."""
    console = Console(
        record=True, width=SVG_COLUMNS, file=io.StringIO(), color_system="truecolor", legacy_windows=False
    )
    console.print(picture(race, prompt, about, headline))
    return _WEB_FONT.sub("", console.export_svg(title="localspec demo"))
