"""The block-character pictures, on absolute scales."""

from hypothesis import given
from hypothesis import strategies as st
from localspec.tui.text.status import gauge, shares


@given(st.floats(-1, 2), st.integers(0, 40))
def test_a_gauge_is_as_wide_as_asked(value, width):
    assert len(gauge(value, width)) == width


def test_a_gauge_is_thin_and_has_halves():
    assert gauge(0.5, 4) == "━━  "
    assert gauge(1 / 4, 2) == "╸ "


@given(st.lists(st.floats(0, 100), min_size=1, max_size=4), st.integers(0, 60))
def test_shares_fill_the_width(values, width):
    cells = shares(values, width)
    assert sum(cells) == (width if sum(values) > 0 else 0)
    assert min(cells) >= 0
