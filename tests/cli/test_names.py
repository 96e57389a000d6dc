"""What stands where a pair is named: a file, a word of another program, a slip of the finger, or nothing."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from time import time

import pytest

import localspec
from localspec import demo
from localspec.cli import main
from localspec.cli.commands import demo as command
from localspec.cli.options import did_you_mean
from localspec.cli.prompt import is_pair
from localspec.errors import UnknownPair
from localspec.loading import pair_info
from localspec.models import local_models, names
from localspec.models.registry import named
from localspec.options import config_file, texts_dir

pytestmark = pytest.mark.usefixtures("home_of_processes")

SHORT = ["--threads", "1", "-n", "2"]


@pytest.fixture
def smol(tmp_path, monkeypatch):
    """A model called smol.gguf in the folder of the shell, and its draft."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(demo.draft_path(), tmp_path / "small.gguf")
    return str(shutil.copy(demo.target_path(), tmp_path / "smol.gguf"))


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [["smol.gguf", "Hi"], ["./smol.gguf", "Hi"], ["-m", "smol.gguf", "Hi"], ["Hi", "--pair=smol.gguf"]],
)
def test_a_file_in_place_of_a_name_is_the_target(smol, words, capsys):
    assert main(["run", *words, *SHORT, "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert (reply["pair"], reply["target"], reply["draft"]) == ("smol", "localspec demo target", "")


def test_a_prompt_may_end_like_a_file():
    assert not is_pair("~200 MB are little for smol.gguf")


@pytest.mark.process
def test_a_named_draft_is_used_next_time_and_what_measurements_load_is_not(smol, monkeypatch, capsys):
    assert main(["run", "smol.gguf", "Hi", "--draft", "small.gguf", *SHORT]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("[smol+small · 2 tokens")
    used = local_models.last_uses()
    assert names.default_pair().paths == (smol, os.path.abspath("small.gguf"))
    monkeypatch.setattr(
        command, "enlarged", lambda stage: (Path(shutil.copy(smol, "other.gguf")), demo.draft_path())
    )
    for words in (
        ["demo"],
        ["bench", "small.gguf", "Hi", *SHORT],
        ["verify", "small.gguf", "--seconds", "1"],
        ["info", "small.gguf"],
    ):
        assert main(words) in (0, 3, 130), words
        assert local_models.last_uses() == used, words
    localspec.compare("Hi", target="small.gguf", max_tokens=2)
    assert local_models.last_uses() == used
    assert names.default_pair().paths[0] == smol


def test_python_and_the_settings_take_a_file_too(smol, monkeypatch):
    with localspec.load("smol.gguf", threads=1) as session:
        assert session.target_name == "localspec demo target"
    assert "smol" not in local_models.last_uses()
    assert names.find(Path("smol.gguf")).name == "smol"
    assert names.find(Path("demo")).name == "demo"
    monkeypatch.setenv("LOCALSPEC_PAIR", "smol.gguf")
    with localspec.load(threads=1) as session:
        assert session.target_name == "localspec demo target"


def test_python_callers_of_other_libraries_get_the_right_word():
    with pytest.raises(localspec.LocalspecError) as caught:
        localspec.run("Hi", model="smol.gguf")
    assert caught.value.hint == "did you mean pair or target?"


def test_a_pair_that_is_called_like_a_file_comes_first(smol, tiny_gguf):
    files = ["--target", str(tiny_gguf()), "--draft", str(tiny_gguf(layers=1))]
    assert main(["pairs", "add", "smol.gguf", *files]) == 0
    assert names.find("smol.gguf").draft is not None
    assert names.find("./smol.gguf").draft is None


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_file_in_a_folder_that_may_not_be_read_says_so(tmp_path):
    folder = tmp_path / "secret"
    folder.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(UnknownPair, match=r"a\.gguf cannot be read: Permission denied"):
            names.find(target=folder / "a.gguf")
    finally:
        os.seteuid(user)


def test_what_deletes_is_suggested_where_nothing_else_is_near_and_a_flag_that_deletes_never():
    for word, near in (("rum", "run"), ("rmm", "rm")):
        assert did_you_mean(word, ["rm", "run"]) == f"did you mean {near}? "
    for word in ("--yes", "--cache", "--all", "--unuse"):
        assert did_you_mean(word, ["--caches", "--unused", "--json"]) == ""


@pytest.mark.process
def test_a_pair_without_a_draft_is_added_with_lookup(smol, capsys):
    assert main(["pairs", "add", "alone", "--target", smol, "--draft", "lookup"]) == 0
    assert main(["pairs", "add", "bare", "--target", smol]) == 0
    assert {named("alone").kind, named("bare").kind} == {"draft-lookup"}
    assert main(["run", "alone", "Hi", *SHORT, "-q"]) == 0


def add(name, target, draft):
    assert main(["pairs", "add", name, "--target", str(target), "--draft", str(draft)]) == 0


@pytest.mark.process
def test_run_names_a_pair_that_nobody_used(tiny_gguf, smol, capsys):
    """The demo, used last, counts for nothing beside another pair."""
    target = shutil.copy(tiny_gguf(), "target.gguf")
    add("mine", target, tiny_gguf(layers=1))
    local_models.mark_used("demo")
    capsys.readouterr()
    for note in (["notice: mine answers"], []):
        main(["run", "Hi", "--raw", *SHORT])
        assert re.findall(r"notice: \w+ answers", capsys.readouterr().err) == note


def test_the_pair_fetched_after_the_last_use_answers(tiny_gguf, smol):
    for name in ("old", "new"):
        add(name, shutil.copy(tiny_gguf(), f"{name}.gguf"), tiny_gguf(layers=1))
    local_models.mark_used("old")
    assert names.default_pair().name == "old"
    os.utime("new.gguf", (time() + 60, time() + 60))
    assert names.default_pair().name == "new"


def test_info_says_that_a_large_target_is_slow_on_a_cpu(monkeypatch, capsys):
    for least, sentence in ((1e6, True), (1e9, False)):
        monkeypatch.setattr(pair_info, "SLOW_BYTES", least)
        assert main(["info", "demo", "--gpu-layers", "0"]) == 0
        out = capsys.readouterr().out
        assert ("this target is slow on a CPU" in out) == sentence
        assert "localspec demo target, llama, " in out
        assert "by a small model\n" in out


@pytest.mark.parametrize("words", ["demo", "smol.gguf"])
def test_info_takes_lookup_in_place_of_a_draft_as_run_does(smol, words, capsys):
    for choice in (["--draft", "lookup"], ["--no-draft"]):
        assert main(["info", words, *choice]) == 0
        out = capsys.readouterr().out
        assert "no draft; memory as llama.cpp plans it" in out
        assert "demo-draft" not in out


@pytest.mark.process
def test_info_plans_a_known_pair_without_a_network(monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("localspec.models.hub.sleep", lambda _: None)
    assert main(["info", "qwen3-4b+0.6b"]) == 0
    out, err = capsys.readouterr()
    for words, reported in (
        ("cannot be reached", err),
        ("plan is an estimate", err),
        ("memory estimated:", out),
    ):
        assert words in reported
    assert re.search(r"^Qwen3-4B-\S+ +2\.5 GB$", out, re.MULTILINE)
    assert main(["info", "qwen3-4b+0.6b", "--json"]) == 1


def test_list_and_rm_work_in_spite_of_a_damaged_config(capsys):
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text("pair = ")
    for line in ("list", "rm --caches"):
        assert main(line.split()) == 0
    assert f"there is no prompt cache in {texts_dir()}" in capsys.readouterr().out


def test_answers_that_fit_keeps_are_counted_and_removed_after_their_pair(capsys):
    folder = local_models.fitted_dir()
    for path in map(folder.joinpath, ("gone/1.npz", "gone/lock", "gone.gguf", "here/1.npz")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    shutil.copy(demo.draft_path(), folder / "here.gguf")
    add("here", demo.target_path(), folder / "here.gguf")
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    unused = {left["path"]: left["bytes"] for left in found["unused"]}
    assert unused == {str(folder / "gone"): 1000, str(folder / "gone.gguf"): 1000}
    assert found["answers_bytes"] == 1000
    assert main(["rm", "--unused"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["here", "here.gguf"]
    assert main(["rm", "here"]) == 0
    assert main(["rm", "--unused"]) == 0
    assert list(folder.iterdir()) == []


@pytest.mark.process
def test_another_draft_takes_the_place_of_a_pairs_own(smol, capsys):
    assert main(["info", "demo", "--draft", "small.gguf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"]["path"].endswith("/small.gguf")
    pair = names.find("demo", draft="small.gguf")
    assert (pair.name, pair.draft.name, pair.target) == ("demo", "small.gguf", named("demo").target)
    for words, why in (
        (["Hi", "--draft", "small.gguf"], "was given without a target"),
        (["demo", "Hi", "--draft", "org/repo:Q4_K_M"], "on Hugging Face does not fit the pair demo"),
    ):
        assert main(["run", *words]) == 2
        assert why in capsys.readouterr().err
