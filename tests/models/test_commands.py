"""The pair commands as a user types them."""

import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import demo
from localspec.cli import main
from localspec.cli.fetching import agreed, fetch_if_wanted, question
from localspec.loading import pair_info
from localspec.models import local_models
from localspec.models.download import PairNotOnDisk
from localspec.models.names import default_pair
from localspec.models.registry import named, near_names, users_folder
from tests.gguf.mutations import taken_apart

ROOT = Path(__file__).resolve().parent.parent.parent


def test_names_of_ollama_lead_to_the_nearest_pair_and_to_models_of_this_machine_first(tmp_path):
    assert near_names("llama3.1") == near_names("llama3.1:latest") == ["llama-3.1-8b+1b"]
    assert near_names("llama3.2:3b") == ["llama-3.2-3b+1b"]
    own = shutil.copy(Path(demo.__file__).with_name("demo-draft.gguf"), tmp_path / "SmolLM2-135M.Q8_0.gguf")
    local_models.mark_used(str(own))
    assert near_names("smollm2") == ["SmolLM2-135M.Q8_0", "smollm2-1.7b+135m"]
    assert near_names("smollm2:135m") == ["SmolLM2-135M.Q8_0"]


def test_pairs_lists_everything_without_the_network(known, hub, capsys):
    assert main(["pairs"]) == 0
    listed = capsys.readouterr().out
    assert "cannot run yet" not in listed
    assert "llama-3.1-8b+1b" in listed
    assert "tiny" in listed
    assert hub.requests == []
    assert re.search(r"^demo .* MB  here  ", listed, re.MULTILINE)
    assert "MEMORY: an estimate" in listed
    best = next(row.name for row in pair_info.listing() if row.recommended)
    assert [line.split()[0] for line in listed.splitlines() if " ★ " in line] == [best]


@pytest.mark.process
def test_pull_says_how_to_run_and_pairs_as_json_has_the_pair(known, capsys):
    assert main(["pull", "tiny"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "sha256 verified" in printed.err
    assert "localspec run tiny" in printed.err
    assert main(["pairs", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["pairs"]}
    assert rows["tiny"]["on_disk"]
    assert rows["tiny"]["bytes"] == known.target.size + known.draft.size
    assert rows["llama-3.1-8b+1b"]["aliases"] == ["llama-3-8b+1b"]
    assert not rows["llama-3.1-8b+1b"]["on_disk"]
    assert rows["llama-3.1-8b+1b"]["memory_bytes"] > rows["llama-3.1-8b+1b"]["bytes"]


@pytest.mark.process
def test_list_and_rm(known, capsys):
    assert main(["pull", "tiny"]) == 0
    local_models.mark_used("tiny")
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    row = next(row for row in json.loads(capsys.readouterr().out)["pairs"] if row["name"] == "tiny")
    assert row["last_used"] is not None
    assert all(file["removable"] for file in row["files"])
    assert main(["rm", "tiny", "--json"]) == 0
    removed = json.loads(capsys.readouterr().out)
    assert removed["freed_bytes"] == known.target.size + known.draft.size
    assert removed["taken_out_of"] == str(users_folder() / "tiny.toml")
    assert main(["list"]) == 0
    assert main(["pairs"]) == 0
    assert "tiny" not in capsys.readouterr().out
    assert main(["rm", "llama-3-8b+1b"]) == 0
    assert "nothing of llama-3.1-8b+1b" in capsys.readouterr().out


def test_rm_names_what_it_keeps_a_users_file_by_its_path_and_a_fitted_draft_by_its_name(tiny_gguf, capsys):
    target, made = str(tiny_gguf()), local_models.fitted_dir() / "small.gguf"
    made.parent.mkdir(parents=True)
    shutil.copy(tiny_gguf(layers=1), made)
    for name in ("one", "other"):
        assert main(["pairs", "add", name, "--target", target, "--draft", str(made)]) == 0
    assert main(["rm", "one"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"kept {target}: it is a file of yours" in printed
    assert "kept small.gguf: other uses it" in printed
    assert "one is no longer in" in printed
    assert Path(target).exists()
    assert main(["rm", "one"]) == 2


@pytest.mark.process
def test_rm_removes_the_draft_that_fit_made_and_the_demo_stays_the_default(capsys):
    assert main(["fit", "--trim", "1024", "--threads", "1"]) == 0
    made = local_models.fitted_dir() / "demo-trim-1024.gguf"
    assert main(["rm", "--unused"]) == 0
    kept = {path.name for path in local_models.fitted_dir().glob("*.gguf")}
    assert kept == {made.name, "demo-trim-1024.tokens.gguf"}
    assert default_pair().name == "demo"
    assert main(["rm", "demo-trim-1024"]) == 0
    printed = capsys.readouterr().out
    assert f"removed {made}" in printed
    assert "demo-target.gguf: it comes with localspec" in printed
    assert "of yours" not in printed
    assert not list(local_models.fitted_dir().glob("*.gguf"))
    assert main(["rm", "demo"]) == 2
    assert "the demo pair is part of localspec" in capsys.readouterr().err


def test_pairs_add_says_what_it_replaces_and_how_to_run_it(tiny_gguf, capsys):
    files = ["--target", str(tiny_gguf()), "--draft", str(tiny_gguf(layers=1))]
    assert main(["pairs", "add", "demo", *files]) == 0
    printed = capsys.readouterr().out
    assert "It replaces the built-in pair demo." in printed
    assert "localspec chat demo" in printed
    assert (len(named("demo").target.sha256), named("demo").on_disk) == (64, True)
    assert main(["pairs", "add", "demo", *files]) == 0
    assert "It replaces your earlier pair demo." in capsys.readouterr().out
    assert main(["pairs", "add", "mine", *files[:3], str(demo.draft_path())]) == 1
    assert "cannot draft" in capsys.readouterr().err
    assert main(["pairs"]) == 0
    assert "mine" not in capsys.readouterr().out


@pytest.mark.process
def test_info_without_a_network_does_not_speak_of_kept_bytes(known, impatient, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["info", "tiny"]) == 0
    printed = capsys.readouterr().err
    assert "cannot be reached" in printed
    assert "kept" not in printed


@pytest.mark.process
def test_pairs_add_pins_files_of_the_hub(served, capsys):
    arguments = ["--target", "org/target:target.gguf", "--draft", "org/draft:draft.gguf", "--use", "tests"]
    assert main(["pairs", "add", "mine", *arguments]) == 0
    pair = named("mine")
    assert (pair.target.sha256, pair.target.revision) == (served.target.sha256, served.pair.target.revision)
    assert pair.context == 2048
    assert main(["pull", "mine"]) == 0
    assert pair.on_disk


def test_info_on_a_huge_file_reads_its_head_only(hub, tiny_gguf, tmp_path, capsys):
    """5 GB, sparse: a header with a large vocabulary, one long tensor, and nothing else."""
    raw = taken_apart(tiny_gguf(vocab_size=20_000, layers=1))
    path = tmp_path / "huge.gguf"
    path.write_bytes(raw.written())
    with path.open("r+b") as file:
        file.truncate(5_000_000_000)
    hub.add("org/huge", "huge.gguf", path, sha256="0" * 64)
    assert main(["info", "org/huge:huge.gguf"]) == 0
    assert "5.0 GB" in capsys.readouterr().out
    assert hub.sent["huge.gguf"] < 16_000_000


def test_info_says_how_much_vocabularies_that_differ_share(tiny_gguf, capsys):
    assert main(["info", str(tiny_gguf()), "--draft", str(demo.draft_path())]) == 1
    assert re.search(r"their vocabularies differ, and only \d+% of the tokens", capsys.readouterr().err)
    assert main(["info", str(tiny_gguf()), "--draft", str(tiny_gguf(vocab_size=600))]) == 0
    assert "tokens that both have" in capsys.readouterr().out


@pytest.fixture
def missing(known):
    return PairNotOnDisk(named("tiny"))


class Terminal(io.StringIO):
    def __init__(self, isatty: bool) -> None:
        super().__init__()
        self.isatty = lambda: isatty


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "wanted"), [("", True), ("Y", True), ("yes", True), ("n", False), ("what", False)]
)
def test_a_terminal_is_asked(missing, monkeypatch, answer, wanted):
    monkeypatch.setattr("sys.stdin", Terminal(isatty=True))
    terminal = Terminal(isatty=True)
    assert agreed(lambda: question(missing.pair), terminal, lambda: answer) is wanted
    assert "fits" in terminal.getvalue()
    assert "Download it? [Y/n]" in " ".join(terminal.getvalue().split())


@pytest.mark.process
def test_nobody_is_asked_where_there_is_no_terminal_or_with_pull(missing, known):
    assert f"{(known.target.size + known.draft.size) / 1e6:.1f} MB" in question(missing.pair)
    assert agreed(lambda: question(missing.pair), Terminal(isatty=False), lambda: "y") is False
    with pytest.raises(PairNotOnDisk):
        fetch_if_wanted(missing, None, None, pull=False)
    fetch_if_wanted(missing, None, None, pull=True)
    assert named("tiny").on_disk


@pytest.mark.parametrize("repo", ["a--b/c", "a..b/c", "a/b.git"])
def test_a_name_that_no_repository_has_is_one_sentence(hub, capsys, repo):
    assert main(["info", f"{repo}:x.gguf"]) == 2
    assert f"error: {repo} is not the name of a repository\n" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no file has a colon in its name there")
def test_a_file_on_this_machine_goes_before_one_on_the_hub(tiny_gguf, tmp_path, monkeypatch, capsys):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama:8b.gguf").write_bytes(tiny_gguf().read_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(["info", "models/llama:8b.gguf"]) == 0


def test_info_on_a_file_without_tensors_is_a_sentence(tiny_gguf, tmp_path, capsys):
    path = tmp_path / "ggml-vocab.gguf"
    path.write_bytes(replace(taken_apart(tiny_gguf()), tensors=(), data=b"").written())
    assert main(["info", str(path)]) == 1
    assert "error: ggml-vocab.gguf is not a model" in capsys.readouterr().err
