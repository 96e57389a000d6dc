"""Charts in a terminal tell the truth: bar lengths in proportion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.measure.plot import EIGHTHS, Bar, Chart, drawn

SPEEDUPS = Chart(
    "Speed-up", (Bar("code", 2.0, "2.00x", 1.5, 2.5), Bar("chat <T>", 0.5, "0.50x")), reference=1.0
)


def length(line):
    """Columns that a bar covers, eighths included."""
    return sum(1.0 if c == "█" else EIGHTHS.index(c) / 8 for c in line if c == "█" or c in EIGHTHS[1:])


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(50, 200))
def test_bars_in_the_terminal_are_in_proportion_and_fit(values, columns):
    lines = drawn(Chart("t", tuple(Bar("x", v, f"{v:.2f}x") for v in values)), columns).splitlines()[1:]
    room = length(lines[values.index(max(values))]) / max(values)
    for line, value in zip(lines, values, strict=True):
        assert len(line) <= columns
        assert length(line) == pytest.approx(value * room, abs=0.13)


def test_the_reference_stands_in_the_same_column_of_every_line_that_does_not_cover_it():
    lines = drawn(SPEEDUPS, 60).splitlines()[1:]
    assert "│" not in lines[0]
    assert lines[1].index("│") - lines[1].index("█") == pytest.approx(2 * length(lines[1]), abs=1)
