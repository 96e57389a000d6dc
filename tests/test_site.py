"""The docs build as a site without a broken link, with search, and the site loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built from a copy of the docs as strictly as the hosted workflow does."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_built_and_found_by_the_search(site):
    found = (site / "search.json").read_text("utf-8")
    for page in PAGES:
        name = page.removesuffix(".md") + ".html"
        assert (site / name).is_file()
        assert name in found


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert re.findall(r'(?:src|<link[^>]* href)="https?://[^"]*"', text) == [], page.name


def test_the_menu_has_every_page_and_no_other():
    menu = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    assert {page for group in menu for pages in group.values() for page in pages} == PAGES
