"""Drawn charts tell the truth: bar lengths in proportion, text escaped, files that open."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.charts import BLUE, RED, WIDTH, Bar, Chart, svg, ticks

SPEEDUPS = Chart(
    "Speed-up", (Bar("code", 2.0, "2.00x", 1.5, 2.5), Bar("chat <T>", 0.5, "0.50x")), reference=1.0
)


def test_an_svg_is_well_formed_and_holds_every_label_and_value():
    texts = [e.text for e in ET.fromstring(svg(SPEEDUPS, SPEEDUPS)).iter() if e.tag.endswith("text")]
    assert texts.count("chat <T>") == 2
    assert "2.00x  (1.50 to 2.50)" in texts


def boxes():
    """The bars of the drawing, without its ground."""
    drawing = ET.fromstring(svg(SPEEDUPS))
    return float(drawing.get("height")), [e for e in drawing.iter() if e.tag.endswith("rect")][1:]


def test_bars_on_the_page_are_in_proportion_and_losing_ones_are_red():
    _, found = boxes()
    assert float(found[0].get("width")) == pytest.approx(4 * float(found[1].get("width")), rel=0.01)
    assert [box.get("fill") for box in found] == [BLUE, RED]


def test_everything_on_a_page_is_on_the_page():
    height, found = boxes()
    for box in found:
        assert float(box.get("x")) >= 0
        assert float(box.get("x")) + float(box.get("width")) <= WIDTH
        assert float(box.get("y")) + float(box.get("height")) <= height


@given(st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(end):
    found = ticks(end)
    assert 2 <= len(found) <= 9
    assert found[0] == 0
    assert found[-1] <= end * (1 + 1e-6)
