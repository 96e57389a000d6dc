"""A race of plain decoding and drafting on one prompt: clocks, headline, picture."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from localspec.display import counted, for_terminal
from localspec.events import (
    DEMO_PASS,
    LEAST_JUDGED,
    NOTICEABLE,
    Cycle,
    Event,
    Finished,
    FinishReason,
    Origin,
    Piece,
    Started,
    Stats,
    stalled,
)

if TYPE_CHECKING:  # imported late, because rich loads slowly, and the chat needs no picture
    from rich.console import RenderableType

STYLES = {
    Origin.ACCEPTED: "green",
    Origin.FIX: "underline yellow",
    Origin.BONUS: "bold cyan",
    Origin.PLAIN: "",
    Origin.FORCED: "reverse",
}
LEGEND = (
    ("accepted draft token", Origin.ACCEPTED),
    ("corrected by the target", Origin.FIX),
    ("bonus of the target", Origin.BONUS),
)
BRANCHED = "bold white on red"  # style of the first token that differs
NOW_BRANCHED = "The texts differ from the marked word on. Probabilities follow at the end."
FRAME_COLUMNS, FRAME_ROWS = 7, 8  # columns and rows of a terminal that the texts of a picture cannot use
DRIFT = 1.1  # the machine's speed may differ by this factor between both sides of a race
UNFAIR = "The draft tokens do not explain this difference in time: the machine became faster or slower. Run it again."
CONTENDED = "Another program used the processor: close it and measure again."
STOPPED = f"Stopped before both sides had {LEAST_JUDGED} tokens, so there is no verdict."
STALLED = "Not measured: the machine stalled meanwhile. Run it again."


@dataclass(frozen=True, slots=True)
class RaceSide:
    written: tuple[tuple[str, Origin], ...] = ()  # text and origin of each token
    times: tuple[float, ...] = ()  # seconds from the start to each token
    seconds: float = 0.0  # time of all cycles of this side
    tokens: int = 0
    cycles: int = 0
    drafted: int = 0
    is_done: bool = False
    is_demo: bool = False  # whether the pair is the demo; all its passes then count as equally long
    is_sampled: bool = False  # whether tokens are sampled, so that texts may differ

    @property
    def held_up(self) -> bool:
        """Whether the machine stalled during a cycle."""
        cycles = (end - start for start, end in pairwise((0.0, *self.times)))
        return stalled(max(cycles, default=0.0), self.seconds)

    def after(self, event: Event) -> "RaceSide":
        match event:
            case Started(rule=rule):
                return replace(self, is_sampled=rule == "block")
            case Cycle():
                return replace(
                    self,
                    seconds=self.seconds + (DEMO_PASS if self.is_demo else event.seconds),
                    tokens=self.tokens + len(event.tokens),
                    cycles=self.cycles + 1,
                    drafted=self.drafted + event.drafted,
                )
            case Piece():
                written = (*self.written, (event.text, event.origin))
                return replace(self, written=written, times=(*self.times, self.seconds))
            case Finished(reply=reply):
                return replace(self, is_done=reply.finish_reason is not FinishReason.CANCELLED)
        return self

    def until(self, seconds: float) -> "RaceSide":
        if seconds >= self.seconds:
            return self
        written = self.written[: bisect_right(self.times, seconds)]
        share = len(written) / len(self.written) if written else seconds / self.seconds
        cycles, tokens = int(share * self.cycles), int(share * self.tokens)
        return replace(self, written=written, seconds=seconds, cycles=cycles, tokens=tokens, is_done=False)

    def begun(self, pieces: int) -> "RaceSide":
        """Return the side as it was after `pieces` pieces of text, the length of the other side in a stopped race."""
        return self.until(self.times[pieces - 1]) if 0 < pieces < len(self.times) else self


@dataclass(frozen=True, slots=True)
class Race:
    plain: RaceSide = RaceSide()
    drafting: RaceSide = RaceSide()

    @property
    def speedup(self) -> float:
        """Seconds per token of plain decoding / those of drafting; 0 until both sides are done."""
        done = self.plain.is_done and self.drafting.is_done and self.plain.tokens and self.drafting.seconds
        work = self.plain.tokens * self.drafting.seconds
        return self.plain.seconds * self.drafting.tokens / work if done else 0.0

    @property
    def race_sides(self) -> dict[str, RaceSide]:
        return {"plain decoding": self.plain, "with drafting": self.drafting}

    @property
    def is_won(self) -> bool:
        """Whether drafting was faster because of its draft tokens."""
        side = self.drafting
        accepted = sum(origin is Origin.ACCEPTED for _, origin in side.written)
        stats = Stats(cycles=side.cycles, emitted=side.tokens, drafted=side.drafted, accepted=accepted)
        measured = not (stats.hardly_drafted or self.held_up or stats.emitted < LEAST_JUDGED)
        return measured and self.speedup >= NOTICEABLE and is_fair(self.speedup, stats)

    @property
    def held_up(self) -> bool:
        return self.plain.held_up or self.drafting.held_up

    @property
    def branch_point(self) -> int | None:
        """The number of equal tokens before the first difference; None for equal texts or sampled texts."""
        sides = [[text for text, _ in race_side.written] for race_side in (self.plain, self.drafting)]
        one, other = map("".join, sides)
        goes_on = (not self.plain.is_done and other.startswith(one)) or (
            not self.drafting.is_done and one.startswith(other)
        )
        if one == other or goes_on or self.plain.is_sampled:
            return None
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False)))


def is_fair(speedup: float, drafting: Stats) -> bool:
    """Return whether drafting can explain the speed-up, and its plain steps were as fast as plain decoding."""
    own = drafting.speedup
    agrees = own is None or own.low / DRIFT <= speedup <= own.high * DRIFT
    return agrees and 1 / NOTICEABLE <= speedup / drafting.caused(speedup) <= NOTICEABLE


def headline(
    ratio: float,
    identical: bool,
    seconds: tuple[float, float],
    drafting: Stats,
    *,
    sampled: bool = False,
    contended: bool = False,
) -> str:
    """Return a sentence about the text and the speed-up that drafting can have caused.

    `seconds`: the time of plain decoding, and the time of drafting. `contended`: whether other programs used
    the processor; if so, the sentence reports no slowdown.
    """
    speedup, why = drafting.caused(ratio), CONTENDED if contended else ""
    gain = "Slower, " * (speedup < 1) + f"{speedup:.{1 if speedup >= 1.1 else 2}f} times as fast"
    took, speed = f"{seconds[1]:.1f} s instead of {seconds[0]:.1f} s", drafting.tokens_per_second
    if not ratio or drafting.emitted < LEAST_JUDGED:
        gain, took, why = "Too few tokens to compare the speed", "", ""
    elif drafting.hardly_drafted:
        gain, took = f"{'Almost nothing' if drafting.drafted else 'Nothing'} was drafted", ""
        why = "A difference in time is noise."
    elif not is_fair(ratio, drafting) or (contended and ratio < NOTICEABLE):
        gain, took, why = "Not measured", "", why or UNFAIR
    elif not identical:  # the texts may differ in length, so compare tokens per second
        took = f"{speed:.1f} instead of {speed / ratio:.1f} tokens/s"
    if took and 1 / NOTICEABLE < speedup < NOTICEABLE:
        gain = "As fast as plain decoding"
    same = "the same text" if identical else "each text sampled" if sampled else "but the texts differ"
    kept = f"{drafting.accepted:,} of {counted(drafting.drafted, 'draft token')} accepted"
    numbers = ", ".join(filter(None, (took, kept if drafting.drafted else "")))
    return f"{gain}, {same}{': ' * bool(numbers)}{numbers}. {why}".rstrip()


def picture(
    race_sides: Mapping[str, RaceSide],
    prompt: str,
    about: str,
    headline: str = "",
    branch_point: int | None = None,
    room: tuple[int, int] | None = None,
) -> "RenderableType":
    """Return a table of both sides with their clocks, and below the table a legend, headline and `about`.

    `room`: columns and rows of a terminal. The table then has only the newest rows of the texts, and no text below.
    """
    from rich.box import ROUNDED
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    sides = Table(box=ROUNDED, expand=True, show_footer=True, border_style="dim")
    sides.title, sides.title_style, sides.title_justify = Text(for_terminal(f"> {prompt}")), "bold", "left"
    texts = []
    for title, race_side in race_sides.items():
        sides.add_column(
            Text(title, "bold"), Text(clock(race_side), "bold" if race_side.is_done else ""), ratio=1
        )
        styles = (
            BRANCHED if number == branch_point else STYLES[by]
            for number, (_, by) in enumerate(race_side.written)
        )
        words = (for_terminal(text) for text, _ in race_side.written)
        texts.append(Text.assemble(*zip(words, styles, strict=True)))
    if room:
        headline = headline or NOW_BRANCHED * (branch_point is not None)
        sides.title.truncate(room[0], overflow="ellipsis")
        wrapped = (text.wrap(Console(), (room[0] - FRAME_COLUMNS) // 2) for text in texts)
        texts = [Text("\n").join(lines[-max(room[1] - FRAME_ROWS, 1) :]) for lines in wrapped]
        sides.add_row(*texts)
        return Group(sides, Text(headline, "bold"))
    sides.add_row(*texts)
    legend = Text("   ").join(Text(f"■ {name}", STYLES[origin]) for name, origin in LEGEND)
    return Group(sides, legend, *[Text(headline, "bold")] * bool(headline), Text(for_terminal(about), "dim"))


def clock(race_side: RaceSide) -> str:
    """Return the seconds, tokens and passes of a side as a text, without seconds for the demo."""
    counts = f"{counted(race_side.tokens, 'token')} · {counted(race_side.cycles, 'pass', 'passes')}"
    seconds, tick = f"{race_side.seconds:.{1 if race_side.seconds >= 1 else 2}f} s", " ✓" * race_side.is_done
    return f"{counts}{tick}" if race_side.is_demo else f"{seconds}{tick} · {counts}"
