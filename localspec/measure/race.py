"""A race between plain decoding and drafting on one prompt, and its picture."""

import io
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Unpack

from localspec.display import counted, for_terminal
from localspec.events import Cycle, Event, Finished, Origin, Piece, Stats, stood_still
from localspec.options import ReplyOptions

# Rich and sessions load slowly, and the chat needs neither for a race.
if TYPE_CHECKING:
    from rich.console import RenderableType

    from localspec.chat.session import Session

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
NOTICEABLE = 1.03  # less than this either way is no difference
HARDLY = 0.03  # guesses for each token: fewer cannot change the time noticeably
UNFAIR = "The times differ by more than these guesses explain, as on a busy processor. Run it again later."
CROWDED = (
    "Another program used the processor meanwhile, so these times say little. Close it and measure again."
)
STOOD_STILL = "Not measured: the machine stood still in the middle. Run it again."
NO_DRAFT = "without a draft model, only repeated text is guessed (--draft FILE adds one)"
TOY_PASS = 0.05  # seconds of a toy's pass in a race: its real ones are shorter than the bookkeeping
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
    times: tuple[float, ...] = ()  # when each of them stood there
    seconds: float = 0.0  # of this side's own passes
    tokens: int = 0
    cycles: int = 0
    drafted: int = 0
    is_done: bool = False
    is_toy: bool = False  # then each pass counts for the same, and no seconds are shown

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def kept(self) -> int:
        """Drafted tokens that the target kept."""
        return sum(origin is Origin.ACCEPTED for _, origin in self.written)

    @property
    def held_up(self) -> bool:
        """Whether the machine stood still in a cycle."""
        cycles = (end - start for start, end in pairwise((0.0, *self.times)))
        return stood_still(max(cycles, default=0.0), self.seconds)

    def after(self, event: Event) -> "Lane":
        """The side after one more report of its reply."""
        match event:
            case Cycle():
                return replace(
                    self,
                    seconds=self.seconds + (TOY_PASS if self.is_toy else event.seconds),
                    tokens=self.tokens + len(event.tokens),
                    cycles=self.cycles + 1,
                    drafted=self.drafted + event.drafted,
                )
            case Piece():
                written = (*self.written, (event.text, event.origin))
                return replace(self, written=written, times=(*self.times, self.seconds))
            case Finished():
                return replace(self, is_done=True)
        return self

    def until(self, seconds: float) -> "Lane":
        """The side when its clock stood there."""
        if seconds >= self.seconds:
            return self
        written = self.written[: bisect_right(self.times, seconds)]
        share = seconds / self.seconds
        cycles, tokens = int(share * self.cycles), int(share * self.tokens)
        return replace(self, written=written, seconds=seconds, cycles=cycles, tokens=tokens, is_done=False)


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
        done = self.plain.is_done and self.drafting.is_done and self.drafting.seconds
        return self.plain.seconds / self.drafting.seconds if done else 0.0

    @property
    def lanes(self) -> dict[str, Lane]:
        """The sides by their titles."""
        return {"plain decoding": self.plain, "with drafting": self.drafting}

    @property
    def stats(self) -> Stats:
        """The counts of the side that drafts."""
        side = self.drafting
        return Stats(cycles=side.cycles, emitted=side.tokens, drafted=side.drafted, accepted=side.kept)

    @property
    def is_won(self) -> bool:
        """Whether drafting was faster, by its guesses."""
        measured = not (hardly_drafted(self.stats) or self.held_up)
        return measured and self.speedup >= NOTICEABLE and is_fair(self.speedup, self.stats)

    @property
    def held_up(self) -> bool:
        """Whether either side was."""
        return self.plain.held_up or self.drafting.held_up

    @property
    def identical(self) -> bool:
        return [text for text, _ in self.plain.written] == [text for text, _ in self.drafting.written]


def race(
    plain: "Session",
    drafting: "Session",
    prompt: str,
    pace: Pace | None = None,
    **options: Unpack[ReplyOptions],
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
    while racing := [side for side in (0, 1) if not lanes[side].is_done]:
        side = min(racing, key=lambda side: lanes[side].seconds)
        for event in streams[side]:
            if isinstance(event, Finished):
                lanes[side] = lanes[side].after(event)
            elif isinstance(event, Cycle):
                lanes[side] = _grown(lanes[side], event, sessions[side], pace)
                break
        yield Race(*lanes)


def _grown(lane: Lane, cycle: Cycle, session: "Session", pace: Pace | None) -> Lane:
    vocabulary = session.pair.vocabulary
    texts = tuple(
        ("" if vocabulary.is_end(token) else session.text_of(token), origin)
        for token, origin in zip(cycle.tokens, cycle.origins, strict=True)
    )
    seconds = pace.pass_seconds + pace.draft_seconds * cycle.drafted if pace else cycle.seconds
    after = lane.seconds + seconds
    written, times = lane.written + texts, lane.times + (after,) * len(texts)
    return replace(lane.after(cycle), written=written, times=times, seconds=after)


def hardly_drafted(stats: Stats) -> bool:
    """Whether a reply has so few guesses that a difference to plain decoding is noise."""
    return stats.drafted <= HARDLY * stats.emitted


def caused(speedup: float, drafting: Stats) -> float:
    """A speed-up as far as the guesses can have caused it.

    No pass saves more than a plain one for each of its tokens. And none takes longer than a plain one for each token
    that it checks; the draft's own time comes on top.
    """
    checking = drafting.verify_seconds / drafting.decode_seconds if drafting.decode_seconds else 1.0
    slowest = checking * drafting.emitted / max(drafting.cycles + drafting.drafted, drafting.emitted, 1)
    return min(max(speedup, slowest), drafting.mean_accepted_length)


def is_fair(speedup: float, drafting: Stats) -> bool:
    """Whether the guesses can have caused this gain or loss."""
    return 1 / NOTICEABLE <= speedup / caused(speedup, drafting) <= NOTICEABLE


def headline(
    speedup: float,
    identical: bool,
    seconds: tuple[float, float],
    drafting: Stats,
    how: str = "",
    *,
    sampled: bool = False,
    crowded: bool = False,
) -> str:
    """How much faster drafting was and whether the text is the same, by the seconds of plain decoding and drafting.

    No gain or loss is claimed that its guesses cannot have caused, and no loss from a `crowded` processor.
    """
    if not speedup:
        return "Too little was decoded to compare the speed."
    same = "the same text" if identical else "each text sampled" if sampled else "but the texts differ"
    kept = f"{drafting.accepted:,} of {counted(drafting.drafted, 'guess', 'guesses')} kept"
    if hardly_drafted(drafting):
        kept = f"{kept} in {counted(drafting.emitted, 'token')}"
        took = "hardly took part" if drafting.drafted else "took no part"
        return f"Drafting {took}, {same}: {kept}. A difference in time is noise."
    if not is_fair(speedup, drafting) or (crowded and speedup < NOTICEABLE):
        return f"Not measured, {same}: {kept}. {CROWDED if crowded else UNFAIR}"
    speedup = caused(speedup, drafting)
    said = f"{speedup:.{1 if speedup >= 1.1 else 2}f} times as fast"
    if 1 / NOTICEABLE < speedup < NOTICEABLE:
        said = "As fast as plain decoding"
    elif speedup < 1:
        said = f"Slower, {said}"
    took = f"{seconds[1]:.1f} s instead of {seconds[0]:.1f} s"
    return f"{said}, {same}: {took}, {kept}{how and f' ({how})'}.{crowded * f' {CROWDED}'}"


def picture(lanes: Mapping[str, Lane], prompt: str, about: str, headline: str = "") -> "RenderableType":
    """Sides with their titles beside each other and their clocks; the legend, the outcome and the models below."""
    from rich.box import ROUNDED
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    sides = Table(box=ROUNDED, expand=True, show_footer=True, border_style="dim")
    sides.title, sides.title_style, sides.title_justify = Text(for_terminal(f"> {prompt}")), "bold", "left"
    for title, lane in lanes.items():
        sides.add_column(Text(title, "bold"), Text(clock(lane), "bold" if lane.is_done else ""), ratio=1)
    sides.add_row(
        *(
            Text.assemble(*((for_terminal(text), STYLES[by]) for text, by in lane.written))
            for lane in lanes.values()
        )
    )
    legend = Text("   ").join(Text(f"■ {name}", STYLES[origin]) for name, origin in LEGEND)
    return Group(sides, legend, *[Text(headline, "bold")] * bool(headline), Text(for_terminal(about), "dim"))


def clock(lane: Lane) -> str:
    """Seconds, with a tick when the side is done, tokens and passes; a toy has no seconds."""
    counts = f"{counted(lane.tokens, 'token')} · {counted(lane.cycles, 'pass', 'passes')}"
    if lane.is_toy:
        return f"{counts}{' ✓' * lane.is_done}"
    return f"{lane.seconds:.{1 if lane.seconds >= 1 else 2}f} s{' ✓' * lane.is_done} · {counts}"


def svg(lanes: Mapping[str, Lane], prompt: str, about: str, headline: str) -> str:
    """The picture as an SVG document that loads no font from elsewhere."""
    from rich.console import Console

    console = Console(
        record=True, width=SVG_COLUMNS, file=io.StringIO(), color_system="truecolor", legacy_windows=False
    )
    console.print(picture(lanes, prompt, about, headline))
    return _WEB_FONT.sub("", console.export_svg(title="localspec"))
