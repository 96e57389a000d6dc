"""What a model may be called: as the server was started, by an alias, as it was pulled, in any case."""

import pytest

from localspec.demo import __file__ as demo
from localspec.engine.messages import LoadPair, Ready
from localspec.serve.bodies import Problem
from localspec.serve.jobs import Loaded
from localspec.serve.pairs import Pairs

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
        self.loaded = Loaded(first, Ready(name, "target", "", 100, 0.1))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (tmp_path / "pairs.d").mkdir()
    (tmp_path / "pairs.d" / "mine.toml").write_text(OURS)


def pairs(first="mine", called="", **options):
    return Pairs(Queue(LoadPair(first), first), any_model=False, called=called, **options)


@pytest.mark.parametrize("name", ["mine", "MINE", "short", "Short", "Org/Repo:Q4_K_M", "mine:latest", ""])
def test_every_name_of_the_pair_means_it(name):
    assert pairs().choose(name).load == LoadPair("mine")
    assert pairs("demo").choose(name or "short").load == LoadPair("mine")


@pytest.mark.parametrize("name", ["Short:target", "ORG/REPO:Q4_K_M:TARGET"])
def test_a_part_is_named_after_any_of_them(name):
    chosen = pairs().choose(name)
    assert (chosen.load, chosen.speculate, chosen.name) == (LoadPair("mine"), False, name)


def test_a_file_is_called_by_its_path_as_it_was_given():
    files = Pairs(Queue(LoadPair(target="/x/A.gguf"), "a"), any_model=False, called="./A.gguf")
    assert files.choose("./a.GGUF").load == files.choose("A").load == LoadPair(target="/x/A.gguf")


@pytest.mark.parametrize("name", ["yours", "short:draft", "org/repo:q8_0", "llama-3-8b+1b"])
def test_what_is_not_here_is_refused(name):
    with pytest.raises(Problem, match="there is no model"):
        pairs().choose(name)


@pytest.mark.parametrize(("name", "offered"), [("shrt", "mine"), ("claude", "mine"), ("demi", "demo")])
def test_a_refused_name_comes_with_a_similar_one_or_that_of_the_loaded_pair(name, offered):
    with pytest.raises(Problem, match=f"ask for {offered!r}"):
        pairs().choose(name)
