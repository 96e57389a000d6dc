"""A bar chart as data, and as shapes on a page: drawn to a terminal, an SVG or a PNG elsewhere."""

import math
from dataclasses import dataclass
from typing import Literal

WIDTH = 760  # all lengths in pixels
MARGIN, LABELS, VALUES = 20, 150, 150
BAR, GAP, TITLE, AXIS = 18, 8, 44, 36
TEXT_SIZE, TITLE_SIZE = 13, 16
INK, FAINT, BLUE, RED = "#222222", "#999999", "#3b7dd8", "#c8553d"
MOST_TICKS = 7


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
