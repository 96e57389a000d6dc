"""Bar charts as SVG, which browsers and a README show."""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 760  # all lengths in pixels
MARGIN, LABELS, VALUES = 20, 150, 150
BAR, GAP, TITLE, AXIS = 18, 8, 44, 36
TEXT_SIZE, TITLE_SIZE = 13, 16
INK, FAINT, BLUE, RED = "#222222", "#999999", "#3b7dd8", "#c8553d"
MOST_TICKS = 7


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


def svg(*charts: Chart) -> str:
    """An SVG document on white ground, the charts below each other."""
    shapes, top = list[str](), float(MARGIN)
    for chart in charts:
        found, top = laid_out(chart, top)
        shapes += found
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{math.ceil(top)}" '
        f'viewBox="0 0 {WIDTH} {math.ceil(top)}" font-family="system-ui, sans-serif">'
    )
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, ground, *shapes, "</svg>", ""])


def laid_out(chart: Chart, top: float) -> tuple[list[str], float]:
    """The shapes of a chart that begins at `top`, and its bottom."""
    left, first = MARGIN + LABELS, top + TITLE
    scale = (WIDTH - 2 * MARGIN - LABELS - VALUES) / chart.end
    bottom = first + len(chart.bars) * (BAR + GAP)
    shapes = [text(MARGIN, top + TITLE_SIZE / 2, chart.title, "start", TITLE_SIZE)]
    for value in ticks(chart.end):
        x = left + value * scale
        shapes += [
            line(x, first - GAP, x, bottom, "#e4e4e4"),
            text(x, bottom + TEXT_SIZE, f"{value:g}", "middle", TEXT_SIZE - 2, FAINT),
        ]
    for number, bar in enumerate(chart.bars):
        y = first + number * (BAR + GAP)
        good = chart.reference is None or bar.value >= chart.reference
        middle, colour = y + BAR / 2, BLUE if good else RED
        label = bar.text if bar.low is None else f"{bar.text}  ({bar.low:.2f} to {bar.high:.2f})"
        shapes += [
            text(left - GAP, middle, bar.label, "end"),
            f'<rect x="{left}" y="{y:.1f}" width="{bar.value * scale:.1f}" height="{BAR}" fill="{colour}"/>',
            text(left + chart.end * scale + GAP, middle, label, "start"),
        ]
        if bar.low is not None and bar.high is not None:
            shapes.append(line(left + bar.low * scale, middle, left + bar.high * scale, middle))
    if chart.reference is not None:
        x = left + chart.reference * scale
        shapes.append(line(x, first - GAP, x, bottom))
    return shapes, bottom + AXIS


def line(x1: float, y1: float, x2: float, y2: float, colour: str = INK) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def text(x: float, y: float, words: str, anchor: str, size: int = TEXT_SIZE, colour: str = INK) -> str:
    """`y`: of the middle of the letters."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'dominant-baseline="central" fill="{colour}">{escape(words)}</text>'
    )


def ticks(end: float) -> list[float]:
    """Round values from 0 to the end of the axis."""
    rough = end / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(step * i, 10) for i in range(int(end / step + 1e-9) + 1)]
