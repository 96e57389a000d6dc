"""Bar charts as text for a terminal."""

from dataclasses import dataclass

EIGHTHS = " ▏▎▍▌▋▊▉"
REFERENCE, WHISKER = "│", "─"
LEAST_ROOM = 10  # columns for the bars


@dataclass(frozen=True, slots=True)
class Bar:
    """One value, with its interval if that is known."""

    label: str
    value: float
    text: str  # the value as people read it
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Horizontal bars from 0, compared with `reference`."""

    title: str
    bars: tuple[Bar, ...]
    reference: float | None = None

    @property
    def end(self) -> float:
        """The end of the axis: everything fits."""
        return max([*(bar.high or bar.value for bar in self.bars), self.reference or 0.0, 1e-9])


def drawn(chart: Chart, columns: int) -> str:
    """The chart in at most `columns` columns, as long as its labels leave room."""
    labels = max((len(bar.label) for bar in chart.bars), default=0)
    values = max((len(bar.text) for bar in chart.bars), default=0)
    room = max(columns - labels - values - 4, LEAST_ROOM)
    lines = [f"{bar.label:<{labels}}  {track(chart, bar, room)}  {bar.text:>{values}}" for bar in chart.bars]
    marks = [f"{REFERENCE} plain decoding"] * (chart.reference is not None)
    marks += [f"{WHISKER} 95 % interval"] * any(bar.high for bar in chart.bars)
    return "\n".join([chart.title + f" ({', '.join(marks)})" * bool(marks), *lines])


def track(chart: Chart, bar: Bar, room: int) -> str:
    """One bar, its interval as a line beyond it, and the reference unless the bar covers it."""
    scale = room / chart.end
    eighths = round(bar.value * scale * 8)
    cells = list("█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else ""))
    cells += " " * (room - len(cells))
    if bar.high is not None:
        for i in range(-(-eighths // 8), min(round(bar.high * scale), room)):
            cells[i] = WHISKER
    if chart.reference is not None:
        at = min(int(chart.reference * scale), room - 1)
        if cells[at] in (" ", WHISKER):
            cells[at] = REFERENCE
    return "".join(cells[:room])
