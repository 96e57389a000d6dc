"""What is shipped: wheel and sdist carry the UI, the registry and the demo pair; CI runs the README's command."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.sources import ROOT, SOURCES, nodes_of

SHIPPED = (
    "localspec/tui/app.py",
    "localspec/models.toml",
    "localspec/py.typed",
    "localspec/serve/page.html",
    "localspec/demo/demo-target.gguf",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return out


@pytest.mark.process
def test_the_wheel_carries_the_terminal_ui_the_registry_and_the_demo_pair(built):
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert set(SHIPPED) <= set(names)
    assert any(name.startswith("localspec/tui/") and name.endswith(".tcss") for name in names)
    assert "localspec/tui.py" not in names, (
        "the checkout's bridge would shadow nothing, but it does not belong there"
    )
    assert not any(name.startswith(("tui/", "tests/")) for name in names)


@pytest.mark.process
def test_the_sdist_carries_what_a_wheel_is_built_from(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"tui/app.py", "models.toml", "localspec/tui.py", "LICENSE", "README.md"} <= names


def test_a_checkout_finds_the_terminal_ui_and_the_registry():
    from localspec.models.registry import registry_file

    assert registry_file().is_file()
    import localspec.tui

    assert (Path(next(iter(localspec.tui.__path__))) / "app.py").is_file()


def test_ci_runs_the_test_command_of_the_readme():
    command = "pip install '.[test]' && pytest"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_package_that_is_imported_is_declared():
    """One that another package brings may be gone with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = (project["dependencies"], project["optional-dependencies"]["fit"])
    declared = {re.match(r"[\w-]+", each)[0].lower() for names in lists for each in names}
    imported = set()
    for file in SOURCES:
        for node in nodes_of(file):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += (
                [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            )
            imported |= {name.partition(".")[0] for name in names}
    known = packages_distributions()
    others = imported - set(sys.stdlib_module_names) - {"localspec", "tui"}
    found = {known[name][0].lower().replace("_", "-") if name in known else name for name in others}
    assert found <= declared


DOCS = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


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


@pytest.mark.process
def test_every_page_is_built_and_found_by_the_search(site):
    found = (site / "search.json").read_text("utf-8")
    for page in DOCS:
        name = page.removesuffix(".md") + ".html"
        assert (site / name).is_file()
        assert name in found


@pytest.mark.process
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert re.findall(r'(?:src|<link[^>]* href)="https?://[^"]*"', text) == [], page.name


def test_the_menu_has_every_page_and_no_other():
    menu = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    assert {page for group in menu for pages in group.values() for page in pages} == DOCS
