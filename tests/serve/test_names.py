"""What a model may be called: as the server was started, by an alias, as it was pulled, in any case."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.demo import __file__ as demo
from localspec.engine.messages import LoadPair, Ready
from localspec.gguf.facts import DraftKind
from localspec.models.local_models import ModelFile, mark_used
from localspec.models.registry import Pair, named
from localspec.serve.options import Problem
from localspec.serve.replies import Names, Pairs

OURS = f"""
[[pair]]
name = "mine"
aliases = ["short", "org/repo:q4_k_m"]
[pair.target]
path = "{demo.replace("__init__.py", "demo-target.gguf")}"
[pair.draft]
path = "{demo.replace("__init__.py", "demo-draft.gguf")}"
"""


class Queue:
    """What is needed of the queue: what it began with, and what it loaded."""

    def __init__(self, first, name):
        self.first = first
        self.loaded = Ready(name, "target", "", 100, 0.1)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "pairs.d").mkdir()
    (tmp_path / "pairs.d" / "mine.toml").write_text(OURS)


def pairs(first="mine", called="", **options):
    return Pairs(Queue(LoadPair(named(first)), first), Names(called, **options))


@pytest.mark.parametrize("name", ["mine", "MINE", "short", "Short", "Org/Repo:Q4_K_M", "mine:latest", ""])
def test_every_name_of_the_pair_means_it(name):
    assert pairs().choose(name).load == LoadPair(named("mine"))
    assert pairs("demo").choose(name or "short").load == LoadPair(named("mine"))


@pytest.mark.parametrize("name", ["Short:target", "ORG/REPO:Q4_K_M:TARGET"])
def test_a_part_is_named_after_any_of_them(name):
    chosen = pairs().choose(name)
    assert (chosen.load, chosen.speculate, chosen.name) == (LoadPair(named("mine")), False, name)


def test_a_file_is_called_by_its_path_as_it_was_given():
    load = LoadPair(Pair("A", DraftKind.MODEL, ModelFile.at(Path("/x/A.gguf"))))
    files = Pairs(Queue(load, "A"), Names("./A.gguf"))
    assert files.choose("./a.GGUF").load == files.choose("A").load == load


def test_the_beginning_of_the_name_of_one_model_means_it(tmp_path):
    for name in ("Smol-1B-Instruct.Q8_0", "Other-1B.Q8_0", "Other-2B.Q8_0"):
        shutil.copy(Path(demo).with_name("demo-draft.gguf"), tmp_path / f"{name}.gguf")
        mark_used(str(tmp_path / f"{name}.gguf"))
    for name in ("smol", "Smol-1B", "smol-1b-instruct:latest"):
        assert pairs().choose(name).load.pair.name == "Smol-1B-Instruct.Q8_0"
    assert pairs("Other-1B.Q8_0").choose("other-1b").load.pair.name == "Other-1B.Q8_0"
    for name in ("smo", "other", "qwen3-4b"):
        with pytest.raises(Problem, match="there is no model"):
            pairs().choose(name)


@pytest.mark.parametrize("name", ["yours", "short:draft", "org/repo:q8_0", "llama-3-8b+1b"])
def test_what_is_not_here_is_refused(name):
    with pytest.raises(Problem, match="there is no model"):
        pairs().choose(name)


def test_a_pair_that_cannot_be_read_is_no_model_and_shows_no_path(tmp_path):
    (tmp_path / "pairs.d" / "bad.toml").write_text("[[pair]]\nnew_field = 1\n")
    (tmp_path / "pairs.d" / "demo.toml").write_text("[[pear]]\n")
    assert "mine" in pairs().names()
    for name in ("bad", "demo"):
        with pytest.raises(Problem, match="there is no model") as refused:
            pairs().choose(name)
        assert str(tmp_path) not in refused.value.message


@pytest.mark.parametrize(("name", "offered"), [("shrt", "mine"), ("claude", "mine"), ("demi", "demo")])
def test_a_refused_name_comes_with_a_similar_one_or_that_of_the_loaded_pair(name, offered):
    with pytest.raises(Problem, match=f"use {offered!r}"):
        pairs().choose(name)


def test_an_alias_names_the_first_pair_in_answers_and_is_listed():
    """llama-server calls a model by the first of its aliases in the alphabet."""
    found = Pairs(Queue(LoadPair(named("mine")), "mine"), Names("mine", ("small", "Code")))
    assert found.choose("").name == "Code"
    assert found.choose("SMALL:target") == replace(
        found.choose("small"), name="SMALL:target", speculate=False
    )
    assert [name for name in found.names() if "mine" in name or "Code" in name] == ["Code"]
    assert found.about("small") == {"aliases": ["Code", "small"]}
    assert pairs().about("mine") == {"aliases": ["org/repo:q4_k_m", "short"]}
