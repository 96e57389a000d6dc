"""A draft that was published beside a model drafts for it, and never fails a load."""

import shutil

import pytest

from localspec.cli import main
from localspec.engine.messages import decode, encode
from localspec.gguf.facts import DraftKind
from localspec.loading import load
from localspec.loading.memory import LoadChoices
from localspec.models import names
from localspec.models.own_draft import with_own_draft
from localspec.stopping import WorkStopped


@pytest.fixture
def target(tmp_path, tiny_gguf):
    return shutil.copy(tiny_gguf(layers=3), tmp_path / "m-Q4_K_M.gguf")


def beside(target, name, file):
    return shutil.copy(file, target.with_name(name))


def test_a_draft_model_beside_a_file_drafts_for_it(target, tiny_gguf, capsys):
    assert names.find(target).draft is None
    beside(
        target, "other-draft-Q4_K_M.gguf", tiny_gguf(vocab_size=900)
    )  # another vocabulary, and too few shared
    beside(target, "m-Q8_0.gguf", tiny_gguf(layers=1))
    draft = beside(target, "m-draft-Q4_K_M.gguf", tiny_gguf(layers=1))
    pair = names.find(target)
    assert (pair.draft.place, pair.has_own_draft) == (draft, True)
    assert decode(encode(pair_in(pair)))[1].pair == pair
    assert main(["info", str(target), "--gpu-layers", "0"]) == 0
    assert "own draft    m-draft-Q4_K_M.gguf was found for the target" in capsys.readouterr().out


def pair_in(pair):
    from localspec.engine.messages import LoadPair

    return LoadPair(pair)


def test_a_draft_that_was_named_is_never_replaced(target, tiny_gguf):
    beside(target, "m-draft.gguf", tiny_gguf(layers=1))
    other = beside(target, "small.gguf", tiny_gguf(layers=2))
    assert names.find(target, draft=other).draft.place == other
    assert names.find(target, draft="lookup").draft is None
    assert not names.find(target, draft=other).has_own_draft


def test_kinds_are_taken_in_llama_cpp_s_order(target, tiny_gguf):
    for name in ("m-draft.gguf", "eagle3-m.gguf", "dflash-m.gguf", "mtp-m.gguf", "draftsman.gguf"):
        beside(target, name, tiny_gguf(layers=1))
    for expected in ("mtp-m.gguf", "dflash-m.gguf", "eagle3-m.gguf", "m-draft.gguf"):
        draft = names.find(target).draft
        assert draft.name == expected
        draft.place.unlink()
    assert names.find(target).draft is None


def test_files_that_are_broken_or_do_not_fit_stop_nothing(target):
    target.with_name("mtp-m.gguf").write_bytes(b"no model")
    target.with_name("eagle3-m.gguf").mkdir()
    assert names.find(target).draft is None


def test_a_draft_in_the_same_repository_is_pulled_along(hub, tiny_gguf, capsys):
    hub.add("org/m-GGUF", "m-Q4_K_M.gguf", tiny_gguf(layers=3))
    hub.add("org/m-GGUF", "m-draft-Q8_0.gguf", tiny_gguf(layers=1))
    assert main(["pull", "org/m-GGUF", "-q"]) == 0
    pair = names.find("org/m-GGUF")
    assert (pair.kind, pair.draft.file) == (DraftKind.MODEL, "m-draft-Q8_0.gguf")
    assert pair.on_disk


def test_lookup_that_was_chosen_stays(target, tiny_gguf):
    beside(target, "m-draft.gguf", tiny_gguf(layers=1))
    assert with_own_draft(names.of_file(target).alone).draft is None


@pytest.mark.process
@pytest.mark.parametrize("cut", [0, 4000])
def test_a_draft_that_cannot_be_loaded_leaves_the_model_to_itself(target, tiny_gguf, cut, capsys):
    draft = beside(target, "m-draft.gguf", tiny_gguf(layers=1))
    if cut:  # the header is whole, and names a tensor that llama.cpp does not know
        content = draft.read_bytes()
        draft.write_bytes(content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    assert main(["run", str(target), "Hi", "-n", "3", "--threads", "1"]) == 0
    err = capsys.readouterr().err
    assert ("the draft m-draft.gguf, found on this machine, cannot be used" in err) is bool(cut)
    assert ("[m-Q4_K_M with tiny" in err) is not bool(cut), err


def test_a_load_that_is_stopped_is_not_begun_again_without_the_draft(target, tiny_gguf, monkeypatch):
    beside(target, "m-draft.gguf", tiny_gguf(layers=1))
    begun = []

    def stopped(pair, *_):
        begun.append(pair)
        raise WorkStopped

    monkeypatch.setattr(load, "plan_pair", stopped)
    with pytest.raises(WorkStopped):
        load.load_planned(names.find(target), LoadChoices(), print)
    assert len(begun) == 1
