"""The block-character pictures, on absolute scales."""

from hypothesis import given
from hypothesis import strategies as st
from localspec.tui.text.status import gauge, time_split


@given(st.floats(-1, 2), st.integers(0, 40))
def test_a_gauge_is_as_wide_as_asked(value, width):
    assert len(gauge(value, width)) == width


def test_a_gauge_is_thin_and_has_halves():
    assert gauge(0.5, 4) == "━━  "
    assert gauge(1 / 4, 2) == "╸ "


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3), st.integers(0, 60))
def test_the_split_of_time_fills_the_width(seconds, width):
    cells = [len(bar) for bar, _style in time_split(seconds, width)]
    assert sum(cells) == (width if sum(seconds) > 0 else 0)
