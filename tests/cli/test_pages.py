"""Pages that say what the program takes are what it takes."""

import re
from pathlib import Path

from localspec.cli.commands.config import HEEDED
from localspec.options import SETTINGS
from tools import commands

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def test_the_page_of_commands_is_what_the_parser_gives():
    assert commands.PAGE.read_text("utf-8") == commands.page(), "python -m tools.commands"


def test_every_option_is_explained():
    unexplained = [row for row in commands.page().splitlines() if row.startswith("- ") and row.endswith(":")]
    assert unexplained == []


def test_the_page_of_settings_has_every_setting_and_every_variable():
    page = (DOCS / "config.md").read_text("utf-8")
    names = [*SETTINGS, *HEEDED]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_pages_link_to_pages_that_are_there():
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
