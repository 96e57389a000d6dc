"""Models of Ollama, LM Studio, the Hugging Face cache and llama.cpp are used by the names that their users know."""

import argparse
import json
import os
import shutil
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from localspec.cli import main
from localspec.cli.loading import chosen_pair
from localspec.cli.prompt import is_pair
from localspec.display import size_text
from localspec.errors import BadModelFile, NotOnDisk, UnknownPair
from localspec.gguf.facts import DraftKind
from localspec.loading.pair_info import listing
from localspec.models import names
from localspec.models.local_models import ModelFile, mark_used
from localspec.models.own_draft import _family, family_drafts
from localspec.models.projector import projector_of
from localspec.models.registry import Pair, add_pair, all_pairs, known, registered_pairs
from localspec.models.stores import stored_models
from tests.models.conftest import pair_of
from tests.models.stores import PREFIX, home_of_stores

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and colons in the names of files")
Q4 = "m-Q4_K_M.gguf"


@pytest.fixture
def stores(tmp_path, monkeypatch):
    return home_of_stores(tmp_path, monkeypatch)


@pytest.fixture
def gguf(tiny_gguf):
    return tiny_gguf(chat_template="{{ messages }}")


def found():
    return {model.name: model.store for model in stored_models()}


def test_each_program_s_models_have_the_names_that_its_users_know(stores, gguf):
    stores.in_ollama("smollm2/135m", model=gguf)
    stores.in_ollama("registry.ollama.ai/me/own/latest", model=gguf)
    stores.in_ollama("hf.co/org/repo/Q8_0", model=gguf)
    stores.in_lm_studio("publisher/one", Q4, gguf)
    stores.in_lm_studio("publisher/one", "mmproj-m-f16.gguf", gguf)
    stores.in_hugging_face("org/two", Q4, gguf)
    stores.in_hugging_face("org/two", "q8/m-Q8_0.gguf", gguf)
    stores.in_llama_cpp("manifest=org=three=latest.json")
    stores.in_llama_cpp(f"org_three_{Q4}", gguf)
    stores.in_llama_cpp("plain.gguf", gguf)
    assert found() == {
        "smollm2:135m": "Ollama",
        "me/own:latest": "Ollama",
        "hf.co/org/repo:Q8_0": "Ollama",
        "publisher/one:Q4_K_M": "LM Studio",
        "org/two:Q4_K_M": "Hugging Face",
        "org/two:Q8_0": "Hugging Face",
        "org/three:Q4_K_M": "llama.cpp",
        "plain": "llama.cpp",
    }
    for name in (
        *("smollm2", "SmolLM2:135M", "me/own", "hf.co/org/repo", "publisher/one", f"publisher/one:{Q4}"),
        *("org/three", "hf.co/org/two:Q4_K_M", "https://huggingface.co/org/two:q8_0", "ollama:smollm2:135m"),
    ):
        assert names.find(name).found, name
    for name in ("smollm2:135m", "publisher/one:Q4_K_M", "hf.co/org/two:Q4_K_M"):
        assert is_pair(name), name


def test_a_pair_comes_first_then_a_file_then_the_programs_in_their_order(stores, gguf, monkeypatch):
    monkeypatch.chdir(stores.home)
    stores.in_llama_cpp("manifest=org=repo=latest.json")
    stores.in_llama_cpp(f"org_repo_{Q4}", gguf)
    stores.in_hugging_face("org/repo", Q4, gguf)
    assert names.find("org/repo:Q4_K_M").found.store == "Hugging Face"
    stores.in_lm_studio("org/repo", Q4, gguf)
    assert names.find("org/repo:Q4_K_M").found.store == "LM Studio"
    stores.in_ollama("registry.ollama.ai/org/repo/q4_k_m", model=gguf)
    assert names.find("org/repo:Q4_K_M").found.store == "Ollama"
    assert [name for name in found() if "repo" in name] == [
        "org/repo:q4_k_m",
        "lm-studio:org/repo:Q4_K_M",
        "hugging-face:org/repo:Q4_K_M",
        "llama.cpp:org/repo:Q4_K_M",
    ]
    assert names.find("hugging-face:org/repo:Q4_K_M").found.store == "Hugging Face"
    stores._copy(stores.home / "org" / "repo:Q4_K_M", gguf)
    file = names.find("org/repo:Q4_K_M")
    assert (file.found, file.target.place.resolve()) == (None, stores.home / "org" / "repo:Q4_K_M")
    add_pair(Pair("mine", DraftKind.LOOKUP, ModelFile.at(gguf), aliases=("org/repo:q4_k_m",)))
    assert names.find("org/repo:Q4_K_M").name == "mine"


def test_a_model_of_another_program_drafts_by_its_name(stores, gguf):
    stores.in_ollama("big/1b", model=gguf)
    stores.in_ollama("small/1b", model=gguf.read_bytes() + b"\0")
    pair = names.find("big:1b", draft="small:1b")
    assert [file.label for file in pair.files] == ["big:1b", "small:1b"]
    assert pair.draft.path


def test_ollama_s_system_message_and_sampler_are_taken_and_its_context_is_only_shown(stores, gguf, capsys):
    params = {"temperature": 0.1, "stop": ["<end>"], "num_ctx": 4096, "num_gpu": 3, "top_k": "many"}
    stores.in_ollama("a/b", model=gguf, system=b"Be brief.", params=json.dumps(params).encode())
    pair = names.find("a:b")
    assert pair.own_options == {"temperature": 0.1, "stop": ["<end>"], "system": "Be brief."}
    assert pair.found.context == 4096
    assert main(["info", "a:b", "--gpu-layers", "0"]) == 0
    text = capsys.readouterr().out
    assert "taken        from Ollama: system 'Be brief.'" in text
    assert "not taken    num_ctx 4096: `--context 4096` takes it" in text


def test_a_projector_of_ollama_s_belongs_to_its_model(stores, gguf):
    stores.in_ollama("see/1b", model=gguf, projector=b"image encoder")
    pair = names.find("see:1b")
    assert pair.found.projector == str(stores.blob(b"image encoder"))
    assert projector_of(pair) is None  # it is damaged


def test_a_model_that_cannot_be_loaded_is_listed_with_the_reason(stores, gguf, tiny_gguf, capsys):
    stores.in_ollama("own/1b", tensor=b"weights")
    stores.in_ollama("lost/1b", model=gguf)
    stores.in_ollama("cut/1b", model=gguf.read_bytes()[:200])
    stores.in_ollama("base/1b", model=tiny_gguf(chat_template=None, layers=1))
    stores.in_lm_studio("mlx/one", "model.safetensors", b"weights")
    stores.blob(gguf).unlink()
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "found in" in line}
    for name, why in {
        "own:1b": "found in Ollama; it is in a format of Ollama's own, not a GGUF",
        "lost:1b": "found in Ollama; it is incomplete: its model file is missing",
        "cut:1b": "found in Ollama; it is damaged: its header gives an impossible number of metadata keys, 20",
        "base:1b": "found in Ollama; it has no chat template",
        "mlx/one": "found in LM Studio; it is in MLX's format, not a GGUF",
    }.items():
        assert lines[name].endswith(why), lines[name]
    assert not known("own:1b").on_disk
    assert names.find("base:1b").on_disk
    with pytest.raises(BadModelFile, match="own:1b, found in Ollama, is in a format of Ollama's own"):
        names.find("own:1b")
    rows = {row.name: row for row in listing()}
    assert rows["own:1b"].trouble
    assert not rows["base:1b"].trouble
    assert rows["base:1b"].use == "found in Ollama; it has no chat template"


def test_a_blob_that_is_named_by_its_path_has_the_model_s_name(stores, gguf, tiny_gguf):
    stores.in_ollama("a/b", model=gguf)
    other = stores.blob(tiny_gguf(name="Other"))
    unnamed = stores.blob(b"GGUF")
    mark_used(str(stores.blob(gguf)))
    mark_used(str(other))
    assert names.find(str(stores.blob(gguf))).name == "a:b"
    assert names.find(target=other).name == names.find(target=other).target.name
    assert names.find(target=unnamed).name == "model"
    shown = [pair.name for pair in all_pairs()] + [row.name for row in listing()]
    assert not [name for name in shown if "sha256" in name]
    assert shown.count("a:b") == 2  # once in each list
    assert is_pair(str(other))


def test_a_model_of_another_program_is_the_default_only_after_it_was_used(stores, gguf):
    stores.in_ollama("a/b", model=gguf)
    assert names.find().name == "demo"
    mark_used("a:b")
    assert names.find().name == "a:b"


def test_the_hugging_face_cache_is_enough_without_a_network(stores, gguf, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stores.in_hugging_face("Org/Repo", Q4, gguf, revision="old")
    latest = stores.in_hugging_face("Org/Repo", Q4, gguf, revision="new")
    assert names.find("Org/Repo:Q4_K_M").target.place == latest
    with pytest.raises(NotOnDisk, match=r"^Org/Repo:Q8_0 was not downloaded yet"):
        names.find("Org/Repo:Q8_0")


def test_lm_studio_s_folder_may_have_moved(stores, gguf):
    (stores.home / ".lmstudio-home-pointer").write_text(f"{stores.home / 'moved'}\n")
    stores._copy(stores.home / "moved" / "models" / "a" / "b" / Q4, gguf)
    assert found() == {"a/b:Q4_K_M": "LM Studio"}


def test_the_files_of_other_programs_are_never_written(stores, gguf):
    stores.in_ollama("a/b", model=gguf, params=b"{}")
    stores.in_lm_studio("c/d", Q4, gguf)
    before = {path: path.stat().st_mtime_ns for path in stores.home.rglob("*") if path.is_file()}
    listing(), names.find("a:b"), names.find("c/d")
    assert main(["rm", "a:b"]) == main(["list"]) == 0
    after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before


BROKEN = {
    "not JSON": b"\x00\xff",
    "nested": b"[" * 100_000,
    "empty": b"",
    "a list": b"[1, 2]",
    "no layers": b"{}",
    "layers of numbers": b'{"layers": [1, null]}',
    "a digest of a path": json.dumps(
        {"layers": [{"mediaType": f"{PREFIX}model", "digest": "sha256:../../../etc/passwd"}]}
    ).encode(),
    "no digest": json.dumps({"layers": [{"mediaType": f"{PREFIX}model"}]}).encode(),
    "another program's": b'{"layers": [{"mediaType": "application/vnd.docker", "digest": 1}]}',
    "huge": b" " * 2_000_000,
}


def break_store(stores, gguf):
    for number, content in enumerate(BROKEN.values()):
        stores.manifest(f"registry.ollama.ai/library/broken/{number}").write_bytes(content)
    folder = stores.manifest("registry.ollama.ai/library/linked/x").parent
    os.symlink(folder / "loop", folder / "loop")
    os.symlink(folder.parent, folder / "up")
    os.symlink("/nowhere", folder / "lost")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / ".DS_Store").write_bytes(b"x")
    stores.manifest("registry.ollama.ai/library/bad\nname/x").write_text("{}")
    os.symlink(stores.home, stores.home / "loop")
    stores.in_ollama("params/bad", model=gguf, params=b"[" * 100_000, system=b"\xff\xff")
    stores.in_ollama("params/list", model=gguf, params=b"[1]")


def test_a_broken_store_stops_nothing(stores, gguf, capsys):
    break_store(stores, gguf)
    stores.in_ollama("fine/1b", model=gguf)
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert text.count("it has a manifest that cannot be read") == 9
    assert "Traceback" not in text
    assert names.find("fine:1b").on_disk
    assert names.find("params:bad").own_options == names.find("params:list").own_options == {}
    with pytest.raises(BadModelFile, match="has a manifest that cannot be read"):
        names.find("broken:0")


def test_a_scan_is_bounded_in_bytes_and_in_depth(stores):
    """A manifest has at most 1 MB, and lies where Ollama puts it."""
    for number in range(100):
        stores.manifest(f"registry.ollama.ai/library/many/{number}").write_bytes(b'{"layers": []}')
    deep = stores.manifest("registry.ollama.ai/library/deep/" + "a/" * 50 + "x")
    deep.write_bytes(b'{"layers": []}')
    stores.manifest("registry.ollama.ai/library/huge/x").write_bytes(b'{"layers": []}' + b" " * 1_000_000)
    models = {model.name: model.trouble for model in stored_models()}
    assert len(models) == 101
    assert models["many:7"] == "has no model file"
    assert models["huge:x"] == "has a manifest that cannot be read"


def test_stores_that_change_while_they_are_read_stop_nothing(stores, gguf):
    ended = threading.Event()

    def change():
        while not ended.is_set():
            stores.in_ollama("here/1b", model=gguf)
            stores.in_lm_studio("a/b", Q4, gguf)
            shutil.rmtree(stores.home / ".ollama", ignore_errors=True)
            shutil.rmtree(stores.home / ".lmstudio", ignore_errors=True)

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(15):
            listing()
            [pair.on_disk for pair in all_pairs()]
    finally:
        ended.set()
        other.join()
    with pytest.raises(UnknownPair):
        names.find("gone:1b")


def test_a_pair_is_found_without_a_look_at_other_programs(monkeypatch):
    def looked():
        raise AssertionError("other programs may have hundreds of models")

    monkeypatch.setattr("localspec.models.registry.stored_models", looked)
    assert known("demo").name == "demo"
    assert names.find("demo").name == "demo"


@pytest.fixture
def family(hub, stores, tiny_gguf):
    """Ollama's model of 9B, and a registered pair of 7B of its family, whose draft is on the Hub only."""
    stores.in_ollama("tiny-2/9b", model=tiny_gguf(vocab_size=1024, layers=12))
    draft = hub.add("org/draft", "draft.gguf", tiny_gguf(vocab_size=1024, layers=1))
    target = replace(pair_of(draft, draft).target, file="Tiny-2-7B-Q4_K_M.gguf")
    add_pair(replace(pair_of(draft, draft), target=target))
    return draft


def test_a_draft_of_the_same_family_is_offered_with_its_size_and_once_here_it_drafts(family, capsys):
    assert main(["info", "tiny-2:9b", "--gpu-layers", "0"]) == 0
    offered = f"org/draft:draft.gguf ({size_text(family.size)}) can draft for it: `localspec pull tiny-2:9b`"
    assert offered in capsys.readouterr().out
    assert names.find("tiny-2:9b").draft is None
    assert main(["pull", "tiny-2:9b"]) == 0
    pair = names.find("tiny-2:9b")
    assert (pair.draft.file, pair.has_own_draft, pair.found.store) == ("draft.gguf", True, "Ollama")
    assert names.find("tiny-2:9b", draft="lookup").draft is None


def test_the_offer_stands_before_the_first_use_and_a_failed_download_stops_nothing(
    family, hub, capsys, monkeypatch
):
    arguments = argparse.Namespace(
        name="tiny-2:9b", pair=None, target=None, draft=None, no_draft=False, pull=False
    )
    assert chosen_pair(arguments).draft is None
    assert "can draft for tiny-2:9b; to download it: localspec pull tiny-2:9b" in capsys.readouterr().err
    monkeypatch.setattr("localspec.cli.fetching.agreed", lambda question: "Download it?" in question())
    hub.files.clear()
    assert chosen_pair(arguments).draft is None
    assert "tiny-2:9b runs without a draft model" in capsys.readouterr().err
    mark_used("tiny-2:9b")
    chosen_pair(arguments)
    assert "tiny-2:9b" not in capsys.readouterr().err


def test_a_head_is_offered_to_its_own_size_only():
    assert _family("Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf") == _family("qwen2.5-coder:7b")
    assert _family("Meta Llama 3.1 8B Instruct") == _family("llama3.1:8b") == ("llama31", "8b")
    header = SimpleNamespace(text=lambda _: "", file_bytes=1 << 50)
    heads = {other.target.file: other.draft for other in registered_pairs() if other.kind.is_head}
    for name, own in heads.items():
        found = family_drafts(SimpleNamespace(name="", target=SimpleNamespace(name=name, header=header)))
        assert {file for file in found if file in heads.values()} == {own} - {None}, name
