"""Benchmarks and tools start as their first lines say, and docs/developers/benchmarks.md lists all of them."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.server import compare

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "developers" / "benchmarks.md").read_text("utf-8")


def scripts(folder):
    """Text by module, of the files that a person starts."""
    texts = {path: path.read_text("utf-8") for path in (ROOT / folder).rglob("*.py")}
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in texts}
    return {names[path]: text for path, text in texts.items() if "__main__" in text}


SCRIPTS = scripts("benchmarks") | scripts("tools")


def test_each_script_says_how_it_starts():
    assert [
        name
        for name, text in SCRIPTS.items()
        if f"python -m {name}" not in ast.get_docstring(ast.parse(text))
    ] == []


def test_each_script_starts():
    """Those that train need torch or its tokenizers, which the tests do not install."""
    names = [
        name
        for name, text in SCRIPTS.items()
        if not re.search("^(from|import) (torch|tokenizers)", text, re.M)
    ]
    assert len(names) > 15
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, check=True)


def test_the_list_of_benchmarks_has_every_script_and_every_result():
    results = [path.name for path in (ROOT / "benchmarks" / "results").glob("*.md")]
    assert [name for name in (*scripts("benchmarks"), *results) if name not in PAGE] == []
    named = re.findall(r"`(\S+-\d\d\d\d-\d\d-\d\d\.md)`", PAGE)
    assert sorted(set(named)) == sorted(results)


@pytest.mark.parametrize("given", [(), ("--home", "known")])
def test_a_comparison_begins_without_what_earlier_runs_learned_unless_asked(
    given, tmp_path, home, monkeypatch
):
    homes = []

    def compared(files, options):
        homes.append(Path(os.environ["LOCALSPEC_HOME"]))
        assert given or not any(homes[-1].iterdir())
        homes[-1].joinpath("learned").touch()

    (tmp_path / "known").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, instead in {"enlarged": lambda *_: None, "compare": compared, "markdown": lambda _: ""}.items():
        monkeypatch.setattr(compare, name, instead)
    for _ in range(2):
        command = ("compare", "--server", "llama-server", "--cache", str(tmp_path), "--types", "f16", *given)
        monkeypatch.setattr(sys, "argv", list(command))
        compare.main()
    assert len(set(homes)) == (1 if given else 2)
