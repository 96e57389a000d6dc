"""Bar charts in a terminal: eighths of a block, a line at the reference."""

from localspec.measure.plot import Bar, Chart

EIGHTHS = " ▏▎▍▌▋▊▉"
REFERENCE, WHISKER = "│", "─"
LEAST_ROOM = 10  # columns for the bars


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
