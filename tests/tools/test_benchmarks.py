"""Benchmarks and tools start as their first lines say, and docs/developers/benchmarks.md lists all of them."""

import ast
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tools.heads import prompts

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


@pytest.mark.process
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


def test_sixty_prompts_of_four_kinds_are_measured():
    kinds = [kind for kind, _ in prompts.held_out()]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(prompts.KINDS, 15)
    assert len(set(prompts.held_out())) == 60


@pytest.mark.parametrize("seed", [0, 7])
def test_no_measured_prompt_is_trained_on(seed):
    measured = {prompt for _, prompt in prompts.held_out()}
    trained = list(islice(prompts.mixed(seed), 2000))
    assert not measured & set(trained)
    assert len(set(trained)) == len(trained)


def test_equal_seeds_give_equal_prompts():
    assert list(islice(prompts.mixed(3), 50)) == list(islice(prompts.mixed(3), 50))
    assert list(islice(prompts.mixed(3), 50)) != list(islice(prompts.mixed(4), 50))
