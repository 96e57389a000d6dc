"""Any model of the Hub, as people name it: by repository and quantisation, in parts, alone, with a draft."""

import json
import shutil

import pytest

import localspec
from localspec import demo
from localspec.cli import main
from localspec.errors import BadSetting, DownloadFailed, NotOnDisk, UnknownPair
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import parts_of
from localspec.models import names
from localspec.models.hub import RemoteFile
from localspec.models.local_models import quant_in
from localspec.models.names import SeveralModels, chosen, find, hub_reference, models_in
from localspec.models.own_draft import suggested_draft
from localspec.models.registry import add_pair, is_known, named, users_pairs
from tests.models.conftest import pair_of
from tests.models.hub import COMMIT

QUICK = ("-n", "4", "--temperature", "0", "--threads", "1", "--json")


@pytest.fixture
def several(hub, tiny_gguf):
    small, large = tiny_gguf(vocab_size=600), tiny_gguf(vocab_size=600, layers=3)
    hub.add("org/Some-7B-GGUF", "Some-7B-Q4_K_M.gguf", small)
    hub.add("org/Some-7B-GGUF", "Some-7B-Q8_0.gguf", large)
    hub.add("org/Some-7B-GGUF", "mmproj-Some-7B-F16.gguf", small)
    return hub


@pytest.fixture
def split(hub, tiny_gguf):
    first = tiny_gguf(vocab_size=600, layers=3, tensors_in_part=12)
    for part in parts_of(first):
        hub.add("org/Split-GGUF", f"Q4_K_M/{part.name}", part)
    return first


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("org/repo", ("", "", "main")),
        ("org/repo:Q4_K_M", ("", "Q4_K_M", "main")),
        ("hf.co/org/repo:Q4_K_M", ("", "Q4_K_M", "main")),
        ("org/repo:a/x.gguf", ("a/x.gguf", "", "main")),
        ("https://huggingface.co/org/repo/blob/main/x.gguf", ("x.gguf", "", "main")),
        ("https://huggingface.co/org/repo/resolve/v2/a%20b.gguf?download=true", ("a b.gguf", "", "v2")),
        ("https://huggingface.co/org/repo/tree/main", ("", "", "main")),
        ("https://huggingface.co/org/repo", ("", "", "main")),
    ],
)
def test_a_model_is_named_in_many_ways(text, named):
    found = hub_reference(text)
    assert (found.repo, (found.file, found.quant, found.revision)) == ("org/repo", named)


def test_other_names_are_none_of_the_hub_and_none_leads_out_of_its_repository():
    for text in ("demo", "model.gguf", "folder/model.gguf", "C:\\x.gguf"):
        assert hub_reference(text) is None
    with pytest.raises(BadSetting):
        hub_reference("org/repo:../x.gguf")


def listing_of(*names):
    return [RemoteFile("o/r", name, COMMIT, "", 100 + n, f"{n:064x}", True) for n, name in enumerate(names)]


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("model-UD-IQ2_XXS-00001-of-00002.gguf", "UD-IQ2_XXS"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("BF16/model-BF16.gguf", "BF16"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "q8_0"),
        ("plain.gguf", ""),
    ],
)
def test_the_quantisation_is_read_from_the_name(name, quant):
    files = listing_of(name, "model-UD-IQ2_XXS-00002-of-00002.gguf")
    assert quant_in(models_in("o/r", files)[0].file) == quant


def test_the_model_is_chosen_by_quantisation_and_never_by_guess():
    files = ("a-Q4_K_M.gguf", "a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf", "a.imatrix.gguf", "a-mmproj-F16.gguf")
    models = models_in("o/r", listing_of(*files))
    assert len(models) == 3
    assert chosen("o/r", "q8_0", models).name == "a-Q8_0.gguf"
    assert chosen("o/r", "Q4_K_XL", models).name == "a-UD-Q4_K_XL.gguf"
    with pytest.raises(SeveralModels, match="has no Q5_K_M, only: Q4_K_M, UD-Q4_K_XL, Q8_0"):
        chosen("o/r", "Q5_K_M", models)
    with pytest.raises(SeveralModels, match="has 3 models"):
        chosen("o/r", "", models)
    # One that lacks a part is none.
    with pytest.raises(UnknownPair, match="no GGUF model"):
        models_in("o/r", listing_of("a-Q4_0-00001-of-00002.gguf"))


@pytest.mark.process
def test_a_repository_alone_lists_what_there_is(several, capsys):
    assert main(["pull", "org/Some-7B-GGUF"]) == 2
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()] == ["Q4_K_M", "Q8_0"]
    assert "org/Some-7B-GGUF:Q4_K_M" in printed.err
    assert not several.gets()


@pytest.mark.process
def test_a_model_alone_is_fetched_and_drafts_from_its_text(several, capsys):
    assert main(["pull", "org/Some-7B-GGUF:q4_k_m"]) == 0
    pair = named("org/some-7b-gguf:q4_k_m")
    assert (pair.name, pair.kind, pair.draft) == ("some-7b-q4_k_m", DraftKind.LOOKUP, None)
    assert pair.on_disk
    capsys.readouterr()
    before = len(several.requests)
    for words in (["org/Some-7B-GGUF:Q4_K_M", "abc"], ["abc", "--target", "org/Some-7B-GGUF:Q4_K_M"]):
        assert main(["run", *words, *QUICK]) == 0
        assert json.loads(capsys.readouterr().out)["stats"]["emitted"] <= 4
    assert len(several.requests) == before
    assert main(["rm", pair.name]) == 0
    assert not is_known(pair.name)
    assert not pair.target.place.exists()


def test_two_models_are_a_pair_proved_before_they_come(several, hub, tiny_gguf, capsys):
    assert main(["pull", "org/Some-7B-GGUF:Q8_0", "--draft", "org/Some-7B-GGUF:Q4_K_M", "-q"]) == 0
    pair = named("org/some-7b-gguf:q8_0 org/some-7b-gguf:q4_k_m")
    assert pair.kind is DraftKind.MODEL
    assert find(target="org/Some-7B-GGUF:Q8_0", draft="org/Some-7B-GGUF:Q4_K_M").draft
    hub.add("org/Other", "other.gguf", demo.draft_path())
    assert main(["pull", "org/Some-7B-GGUF:Q8_0", "--draft", "org/Other:other.gguf"]) == 1
    assert "cannot draft for" in capsys.readouterr().err
    assert not is_known("org/some-7b-gguf:q8_0 org/other:other.gguf")


@pytest.mark.process
def test_what_was_not_fetched_names_the_command_and_python_fetches_it_too(several):
    with pytest.raises(NotOnDisk) as caught:
        find(target="org/Some-7B-GGUF:Q4_K_M")
    assert "localspec pull org/Some-7B-GGUF:Q4_K_M" in caught.value.hint
    with localspec.load(target="org/Some-7B-GGUF:Q4_K_M", pull=True, threads=1) as session:
        assert session.complete("abc", max_tokens=4, temperature=0).tokens
        assert session.draft_name == ""


def test_a_model_in_parts_comes_as_a_whole_and_goes_as_a_whole(split, hub, capsys):
    assert main(["pull", "org/Split-GGUF:Q4_K_M"]) == 0
    pair = named("org/split-gguf:q4_k_m")
    first = pair.target.path
    assert [part.name for part in parts_of(first)] == [part.name for part in parts_of(split)]
    assert all(part.is_file() for part in parts_of(first))
    assert pair.target.all_bytes == sum(part.stat().st_size for part in parts_of(split))
    assert main(["run", pair.name, "abc", *QUICK]) == 0
    parts_of(first)[-1].unlink()
    assert not pair.on_disk
    assert main(["pull", pair.name]) == 0
    assert pair.on_disk
    assert main(["rm", pair.name]) == 0
    assert not any(part.exists() for part in parts_of(first))


def test_a_part_named_by_its_address_is_the_model_and_a_damaged_one_ends_the_pull(split, hub, capsys):
    address = "https://huggingface.co/org/Split-GGUF/blob/main/Q4_K_M/"
    opened = names.model_file(address + parts_of(split)[1].name)
    assert opened.name == split.name
    assert opened.header.number("split.count") is None
    for path, served in hub.files.items():  # one failure ends the pull
        if "00002" in path:
            served.flip = served.size - 1
    assert main(["pull", "org/Split-GGUF:Q4_K_M"]) == 1
    assert "arrived damaged" in capsys.readouterr().err
    with pytest.raises(DownloadFailed):
        find(target="org/Split-GGUF:Q4_K_M", pull=True)
    assert not users_pairs(), "a pair is stored when its bytes are here and right"


@pytest.mark.process
@pytest.mark.parametrize("program", ["lmstudio", "llama.cpp", "ollama"])
def test_files_of_other_programs_are_used_where_they_are(several, tmp_path, monkeypatch, program, capsys):
    folders = {"HOME": "", "USERPROFILE": "", "LLAMA_CACHE": "cache", "OLLAMA_MODELS": "ollama"}
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    served = several.files["/org/Some-7B-GGUF/resolve/main/Some-7B-Q4_K_M.gguf"]
    place = {
        "lmstudio": tmp_path / ".lmstudio/models/org/Some-7B-GGUF/Some-7B-Q4_K_M.gguf",
        "llama.cpp": tmp_path / "cache/org_Some-7B-GGUF_Some-7B-Q4_K_M.gguf",
        "ollama": tmp_path / f"ollama/blobs/sha256-{served.sha256}",
    }[program]
    place.parent.mkdir(parents=True)
    shutil.copyfile(served.path, place)
    assert main(["pull", "org/Some-7B-GGUF:Q4_K_M", "-q"]) == 0
    pair = names.find("org/Some-7B-GGUF:Q4_K_M")
    assert pair.target.path == place
    assert main(["rm", pair.name]) == 0
    assert place.exists()


def test_two_models_that_were_described_at_once_get_two_names(hub, tiny_gguf):
    described = []
    for number, repository in enumerate(("one/X-GGUF", "two/X-GGUF"), 1):
        hub.add(repository, "X-Q4_K_M.gguf", tiny_gguf(layers=number))
        described.append(names.described(f"{repository}:Q4_K_M", None))
    assert described[0].name == described[1].name
    kept = [names.keep(pair) for pair in described]
    assert [named(pair.name) for pair in kept] == kept
    assert kept[0].name != kept[1].name
    assert names.keep(described[0]) == kept[0]


def test_a_draft_is_suggested_that_fits(served, hub, tiny_gguf, monkeypatch, capsys):
    target = tiny_gguf(vocab_size=1024, layers=12)
    add_pair(pair_of(served.target, served.draft))
    assert main(["pull", "tiny", "-q"]) == 0
    assert suggested_draft(names.of_file(target)).name == "draft.gguf"
    assert suggested_draft(names.of_file(tiny_gguf(vocab_size=800, layers=12))) is None
    assert main(["info", str(target)]) == 0
    assert "can draft for it: add --draft" in capsys.readouterr().out


def test_info_plans_with_adapters(tiny_gguf, tiny_adapter, capsys):
    target, adapter = tiny_gguf(), tiny_adapter()
    plans = []
    for words in ([], ["--lora", str(adapter)]):
        assert main(["info", str(target), "--json", *words]) == 0
        plans.append(json.loads(capsys.readouterr().out)["plan"]["needs"][0]["weights"])
    assert plans[1] > plans[0]
