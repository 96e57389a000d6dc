"""The pictures of the README and the docs show the program as it is: their words are compared, figures are not."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import pictures
from tools.charts import BLUE, RED, WIDTH, Bar, Chart, svg, ticks

PAGES = [pictures.ROOT / "README.md", *(pictures.ROOT / "docs").rglob("*.md")]


def stored(name):
    return (pictures.FOLDER / f"{name}.svg").read_text("utf-8")


@pytest.mark.process
@pytest.mark.usefixtures("home")
def test_the_screens_of_the_chat_are_up_to_date():
    for name, screen in pictures.chat().items():
        kept, drawn = (pictures.words_of(svg) for svg in (stored(name), screen))
        assert kept == drawn, f"python -m tools.pictures chat: {name}"


def test_the_race_is_up_to_date(home, cache_of_its_own):
    """A race of the small pair writes the same text as one of the enlarged pair; the last lines name the machine."""
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "demo").write_text("")  # no room for the enlarged pair
    words = [pictures.words_of(svg, until="bonus") for svg in (stored("race"), pictures.race()["race"])]
    assert words[0] == words[1], "python -m tools.pictures race"


@pytest.mark.usefixtures("home")
def test_the_passes_are_up_to_date():
    drawn = pictures.passes()["passes"]
    assert pictures.words_of(stored("passes")) == pictures.words_of(drawn), "python -m tools.pictures passes"


def test_the_chart_has_the_figures_of_the_stored_result():
    assert stored("speed") == pictures.speed()["speed"], "python -m tools.pictures speed"


def test_every_picture_is_shown_and_loads_nothing_from_elsewhere():
    shown = set()
    for page in PAGES:
        for name in re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", page.read_text("utf-8")):
            shown.add((page.parent / name).resolve())
    kept = {Path(file).resolve() for file in pictures.FOLDER.glob("*.svg")}
    assert kept == {file for file in shown if file.parent == pictures.FOLDER}
    assert all("url(http" not in file.read_text("utf-8") for file in kept)


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
