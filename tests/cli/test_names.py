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
from localspec.cli.options import did_you_mean
from localspec.cli.prompt import is_pair
from localspec.errors import UnknownPair
from localspec.health import devices
from localspec.models import inspection, names, places
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


@pytest.mark.parametrize(
    "words",
    [["smol.gguf", "Hi"], ["./smol.gguf", "Hi"], ["-m", "smol.gguf", "Hi"], ["Hi", "--pair=smol.gguf"]],
)
def test_a_file_in_place_of_a_name_is_the_target(smol, words, capsys):
    assert main(["run", *words, *SHORT, "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert (reply["pair"], reply["target"], reply["draft"]) == ("smol", "localspec demo target", "")


@pytest.mark.parametrize("prompt", ["word " * 100 + "smol.gguf", "~200 MB are little for smol.gguf"])
def test_a_prompt_may_end_like_a_file(prompt):
    assert not is_pair(prompt)


def test_a_file_in_place_of_a_name_takes_a_draft(smol, capsys):
    assert main(["run", "smol.gguf", "Hi", "--draft", "small.gguf", *SHORT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"] == "localspec demo draft"


def test_python_and_the_settings_take_a_file_too(smol, monkeypatch):
    with localspec.load("smol.gguf", threads=1) as session:
        assert session.target_name == "localspec demo target"
    assert "smol" not in places.last_uses()
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


def test_a_file_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownPair, match=r"missing\.gguf does not exist"):
        localspec.load("missing.gguf")
    assert main(["run", "missing.gguf", "Hi"]) == 2
    assert "missing.gguf does not exist" in capsys.readouterr().err


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


def test_what_deletes_is_suggested_where_nothing_else_is_near():
    assert did_you_mean("rum", ["rm", "run"]) == "did you mean run? "
    assert did_you_mean("rmm", ["rm", "run"]) == "did you mean rm? "


def test_config_shows_one_setting(capsys, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_TEMPERATURE", "0.5")
    assert main(["config", "temperature"]) == 0
    assert capsys.readouterr().out == "temperature       0.5  LOCALSPEC_TEMPERATURE\n"


def test_a_pair_without_a_draft_is_added_with_lookup(smol, capsys):
    assert main(["pairs", "add", "alone", "--target", smol, "--draft", "lookup"]) == 0
    assert main(["pairs", "add", "bare", "--target", smol]) == 0
    assert {named("alone").kind, named("bare").kind} == {"draft-lookup"}
    assert main(["run", "alone", "Hi", *SHORT, "-q"]) == 0


def add(name, target, draft):
    assert main(["pairs", "add", name, "--target", str(target), "--draft", str(draft)]) == 0


def test_run_names_a_pair_that_nobody_used(tiny_gguf, smol, capsys):
    """The demo, used last, counts for nothing beside another pair."""
    target = shutil.copy(tiny_gguf(), "target.gguf")
    add("mine", target, tiny_gguf(layers=1))
    places.mark_used("demo")
    capsys.readouterr()
    for note in (["note: mine answers"], []):
        main(["run", "Hi", "--raw", *SHORT])
        assert re.findall(r"note: \w+ answers", capsys.readouterr().err) == note


def test_the_pair_fetched_after_the_last_use_answers(tiny_gguf, smol):
    for name in ("old", "new"):
        add(name, shutil.copy(tiny_gguf(), f"{name}.gguf"), tiny_gguf(layers=1))
    places.mark_used("old")
    assert names.default_pair().name == "old"
    os.utime("new.gguf", (time() + 60, time() + 60))
    assert names.default_pair().name == "new"


def test_info_says_that_a_draft_is_too_large(smol, capsys):
    for target, draft in (("smol", "smol"), ("smol", "small"), ("small", "smol")):
        assert main(["info", f"{target}.gguf", "--draft", f"{draft}.gguf"]) == 0
        said = "the draft is no smaller than the target" in capsys.readouterr().out
        assert said is (draft != "small")


def test_info_says_that_a_large_target_is_slow_on_a_cpu(monkeypatch, capsys):
    for least, said in ((1e6, True), (1e9, False)):
        monkeypatch.setattr(inspection, "SLOW_BYTES", least)
        assert main(["info", "demo", "--gpu-layers", "0"]) == 0
        assert ("this target is slow on a CPU" in capsys.readouterr().out) == said


@pytest.mark.parametrize("words", ["demo", "smol.gguf"])
def test_info_takes_lookup_in_place_of_a_draft_as_run_does(smol, words, capsys):
    for choice in (["--draft", "lookup"], ["--no-draft"]):
        assert main(["info", words, *choice]) == 0
        out = capsys.readouterr().out
        assert "no draft; memory as llama.cpp plans it" in out
        assert "demo-draft" not in out


def test_info_tells_the_memory_of_the_context_that_pairs_counts(monkeypatch, capsys):
    monkeypatch.setattr(devices, "available_bytes", lambda: 40_000_000_000)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["info", "qwen3-4b+0.6b", "--gpu-layers", "0"]) == 0
    out = capsys.readouterr().out
    assert "context 32,768 tokens" in out
    said = re.search(r"A context of 8,192 tokens, as in `localspec pairs`, needs ([\d.]+ GB)\.", out)[1]
    assert main(["pairs", "--like", "qwen3-4b+0.6b"]) == 0
    assert said in capsys.readouterr().out
    assert main(["info", "qwen3-4b+0.6b", "--context", "16384"]) == 0
    assert "8,192 tokens, as in" not in capsys.readouterr().out


def test_info_says_how_a_pair_drafts_in_plain_words(capsys):
    assert main(["info", "demo"]) == 0
    assert (
        "by a small model: 4 guesses a pass at first, then as many as save time\n" in capsys.readouterr().out
    )


def test_info_plans_a_known_pair_without_a_network(monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["info", "qwen3-4b+0.6b"]) == 0
    out, err = capsys.readouterr()
    assert "cannot be reached" in err
    assert "this is an estimate" in err
    assert "memory estimated:" in out
    assert re.search(r"^Qwen3-4B-\S+ +2\.5 GB$", out, re.MULTILINE)
    assert main(["info", "qwen3-4b+0.6b", "--json"]) == 1


def test_a_hint_about_a_damaged_file_does_not_speak_of_fetching(tmp_path, capsys):
    (tmp_path / "mine.gguf").write_bytes(b"x" * 100)
    assert main(["info", str(tmp_path / "mine.gguf")]) == 1
    assert "hint: get another copy of it, or use another file" in capsys.readouterr().err


def test_an_adapter_that_is_not_there_is_wrong_usage(capsys):
    assert main(["run", "Hi", "-m", "demo", "--lora", "no.gguf"]) == 2
    assert "there is no adapter file no.gguf" in capsys.readouterr().err


def test_list_and_rm_work_in_spite_of_a_damaged_config(capsys):
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text("pair = ")
    for line in ("list", "rm --caches"):
        assert main(line.split()) == 0
        out, err = capsys.readouterr()
        assert f"note: {config_file()}" in err
    assert f"no cache is stored in {texts_dir({})}" in out  # the settings may name another folder


def test_both_files_of_a_trimmed_draft_stay_and_go_with_their_pair(capsys):
    assert main(["fit", "demo", "--trim", "1024", "--threads", "1"]) == 0
    assert main(["rm", "--unused"]) == 0
    made = {path.name for path in places.fitted_dir().glob("*.gguf")}
    assert made == {"demo-trim-1024.gguf", "demo-trim-1024.tokens.gguf"}
    assert main(["rm", "demo-trim-1024"]) == 0
    assert not list(places.fitted_dir().glob("*.gguf"))


def test_answers_that_fit_keeps_are_counted_and_removed_after_their_pair(capsys):
    folder = places.fitted_dir()
    made = [
        folder / "gone" / "1.npz",
        folder / "gone" / "lock",
        folder / "gone.gguf",
        folder / "here" / "1.npz",
    ]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    shutil.copy(demo.draft_path(), folder / "here.gguf")
    add("here", demo.target_path(), folder / "here.gguf")
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {left["path"]: left["bytes"] for left in found["unused"]} == {
        str(folder / "gone"): 1000,
        str(folder / "gone.gguf"): 1000,
    }
    assert found["answers_bytes"] == 1000
    assert main(["rm", "--unused"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["here", "here.gguf"]
    assert main(["rm", "here"]) == 0
    assert main(["rm", "--unused"]) == 0
    assert list(folder.iterdir()) == []


def test_another_draft_takes_the_place_of_a_pairs_own(smol, capsys):
    assert main(["info", "demo", "--draft", "small.gguf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft"]["path"].endswith("/small.gguf")
    pair = names.find("demo", draft="small.gguf")
    assert (pair.name, pair.draft.name, pair.target) == ("demo", "small.gguf", named("demo").target)
    for words, why in (
        (["Hi", "--draft", "small.gguf"], "was given without a target"),
        (["demo", "Hi", "--draft", "org/repo:Q4_K_M"], "of the Hub does not go with the pair demo"),
    ):
        assert main(["run", *words]) == 2
        assert why in capsys.readouterr().err
