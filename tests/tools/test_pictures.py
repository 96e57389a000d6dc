"""The pictures of the README and the docs show the program as it is: their words are compared, figures are not."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools import pictures
from tools.charts import RED, Bar, Chart, svg

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


def test_a_bar_that_loses_is_red_and_labels_are_escaped():
    drawn = svg(Chart("Speed-up", (Bar("chat <T>", 0.5, "0.50x"),), reference=1.0))
    assert RED in drawn
    assert "chat <T>" in [element.text for element in ET.fromstring(drawn).iter()]
