"""Tables and bar charts: as text for a terminal, and as SVG, which browsers and a README show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

WIDTH = 760  # all lengths in pixels
MARGIN, LABELS, VALUES = 20, 150, 150
BAR, GAP, TITLE, AXIS = 18, 8, 44, 36
TEXT_SIZE, TITLE_SIZE = 13, 16
INK, FAINT, BLUE, RED = "#222222", "#999999", "#3b7dd8", "#c8553d"
MOST_TICKS = 7
EIGHTHS = " ▏▎▍▌▋▊▉"
REFERENCE, WHISKER = "│", "─"
LEAST_ROOM = 10  # columns for the bars


@dataclass(frozen=True, slots=True)
class Bar:
    """One value, with its interval where that is known."""

    label: str
    value: float
    text: str  # the value as people read it
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Horizontal bars from 0; `reference` is what they are compared with."""

    title: str
    bars: tuple[Bar, ...]
    reference: float | None = None
    more_is_better: bool = True

    @property
    def end(self) -> float:
        """The end of the axis: everything fits."""
        return max([*(bar.high or bar.value for bar in self.bars), self.reference or 0.0, 1e-9])

    def is_good(self, bar: Bar) -> bool:
        """Whether a bar is on the right side of the reference."""
        return self.reference is None or (bar.value >= self.reference) == self.more_is_better


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    colour: str


@dataclass(frozen=True, slots=True)
class Words:
    x: float
    y: float  # of the middle of the letters
    text: str
    size: int
    anchor: Literal["start", "middle", "end"]
    colour: str = INK


Shape = Box | Line | Words


@dataclass(frozen=True, slots=True)
class Page:
    width: int
    height: int
    shapes: tuple[Shape, ...]


def page(*charts: Chart) -> Page:
    """Charts below each other."""
    shapes, top = list[Shape](), float(MARGIN)
    for chart in charts:
        found, top = laid_out(chart, top)
        shapes += found
    return Page(WIDTH, math.ceil(top), tuple(shapes))


def laid_out(chart: Chart, top: float) -> tuple[list[Shape], float]:
    """The shapes of a chart that begins at `top`, and where it ends."""
    left, room = MARGIN + LABELS, WIDTH - 2 * MARGIN - LABELS - VALUES
    scale = room / chart.end
    shapes: list[Shape] = [Words(MARGIN, top + TITLE_SIZE / 2, chart.title, TITLE_SIZE, "start")]
    first = top + TITLE
    bottom = first + len(chart.bars) * (BAR + GAP)
    for value in ticks(chart.end):
        x = left + value * scale
        shapes.append(Line(x, first - GAP, x, bottom, "#e4e4e4"))
        shapes.append(Words(x, bottom + TEXT_SIZE, f"{value:g}", TEXT_SIZE - 2, "middle", FAINT))
    for number, bar in enumerate(chart.bars):
        y = first + number * (BAR + GAP)
        shapes += bar_shapes(chart, bar, left, y, scale)
    if chart.reference is not None:
        x = left + chart.reference * scale
        shapes.append(Line(x, first - GAP, x, bottom, INK))
    return shapes, bottom + AXIS


def bar_shapes(chart: Chart, bar: Bar, left: float, y: float, scale: float) -> list[Shape]:
    """Label, bar, whisker and value."""
    middle = y + BAR / 2
    text = bar.text if bar.low is None else f"{bar.text}  ({bar.low:.2f} to {bar.high:.2f})"
    shapes: list[Shape] = [
        Words(left - GAP, middle, bar.label, TEXT_SIZE, "end"),
        Box(left, y, bar.value * scale, BAR, BLUE if chart.is_good(bar) else RED),
        Words(left + chart.end * scale + GAP, middle, text, TEXT_SIZE, "start"),
    ]
    if bar.low is not None and bar.high is not None:
        shapes.append(Line(left + bar.low * scale, middle, left + bar.high * scale, middle, INK))
    return shapes


def ticks(end: float) -> list[float]:
    """Round values from 0 to the end of the axis."""
    rough = end / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(step * i, 10) for i in range(int(end / step + 1e-9) + 1)]


def svg(*charts: Chart) -> str:
    """An SVG document on white ground, the charts below each other."""
    drawn_page = page(*charts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawn_page.width}" height="{drawn_page.height}" '
        f'viewBox="0 0 {drawn_page.width} {drawn_page.height}" font-family="system-ui, sans-serif">'
    )
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, ground, *map(element, drawn_page.shapes), "</svg>", ""])


def element(shape: Shape) -> str:
    match shape:
        case Box(x, y, width, height, colour):
            return (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
            )
        case Line(x1, y1, x2, y2, colour):
            return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" text-anchor="{shape.anchor}" '
        f'dominant-baseline="central" fill="{shape.colour}">{escape(shape.text)}</text>'
    )


def drawn(chart: Chart, columns: int) -> str:
    """The chart in at most `columns` columns, as long as its labels leave room."""
    labels = max((len(bar.label) for bar in chart.bars), default=0)
    values = max((len(bar.text) for bar in chart.bars), default=0)
    room = max(columns - labels - values - 4, LEAST_ROOM)
    lines = [f"{bar.label:<{labels}}  {track(chart, bar, room)}  {bar.text:>{values}}" for bar in chart.bars]
    return "\n".join([chart.title, *lines])


def track(chart: Chart, bar: Bar, room: int) -> str:
    """One bar, its interval as a line beyond it, and the reference where the bar does not cover it."""
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


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Lines of columns: the first `left` of them to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<"] * left + [">"] * (len(widths) - left)
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
