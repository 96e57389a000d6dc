"""What a draft file is, and whether a head belongs to a target, by the headers alone; nothing here ends a process."""

from dataclasses import replace

import pytest

import localspec
from localspec.gguf.facts import DraftKind, draft_kind, first_known_crash, has_head, misfit
from localspec.gguf.header import header_at
from tests.gguf.heads import Walk, write_assistant, write_dflash, write_eagle3, write_mtp, write_target

WRITERS = {
    "eagle3": (write_eagle3, Walk(), DraftKind.EAGLE3),
    "mtp": (write_mtp, Walk("mimo2", nextn=1), DraftKind.MTP),
    "assistant": (write_assistant, Walk("gemma4"), DraftKind.ASSISTANT),
    "dflash": (write_dflash, Walk(), DraftKind.DFLASH),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def files(folder):
    return {
        name: (write_target(folder / f"{name}-target.gguf", walk), write(folder / f"{name}.gguf", walk))
        for name, (write, walk, _) in WRITERS.items()
    }


def changed(header, **values):
    """A header with other numbers for keys of its architecture."""
    architecture = header.text("general.architecture")
    entries = dict(header.entries)
    for name, value in values.items():
        entries[f"{architecture}.{name}"] = replace(entries[f"{architecture}.{name}"], value=value)
    return replace(header, entries=entries)


def without(header, tensor):
    return replace(header, tensors=tuple(t for t in header.tensors if t.name != tensor))


@pytest.mark.parametrize("name", WRITERS)
def test_a_head_is_recognised_and_fits_its_target(files, name):
    target, head = map(header_at, files[name])
    assert draft_kind(head) is WRITERS[name][2]
    assert draft_kind(target) is DraftKind.MODEL
    assert first_known_crash(head) is None
    assert misfit(target, head) is None


def test_a_head_inside_is_found_unless_its_count_lies_or_its_tensors_are_missing(folder):
    header = header_at(write_target(folder / "inside.gguf", Walk("qwen35", nextn=1)))
    assert has_head(header)
    assert not has_head(changed(header, nextn_predict_layers=0))
    assert not has_head(changed(header, nextn_predict_layers=2))
    assert not has_head(without(header, "blk.4.nextn.eh_proj.weight"))
    assert "prediction layers" in first_known_crash(changed(header, nextn_predict_layers=6))
    chain = header_at(write_target(folder / "chain.gguf", Walk("mimo2", nextn=3)))
    assert has_head(chain)
    assert not has_head(without(chain, "blk.6.nextn.eh_proj.weight"))
    assert not has_head(header_at(write_target(folder / "llama.gguf", Walk())))


def test_heads_for_other_targets_are_distinguished_in_a_sentence(files, tiny_gguf):
    llama, eagle3 = map(header_at, files["eagle3"])
    mimo2, mtp = map(header_at, files["mtp"])
    gemma4, assistant = map(header_at, files["assistant"])
    _, dflash = map(header_at, files["dflash"])
    other = changed(llama, embedding_length=128)
    for target, head, why in [
        (mimo2, mtp, None),
        (llama, mtp, "it predicts for mimo2 models, and the target is a llama"),
        (changed(mimo2, block_count=9), mtp, "made for a target 4 layers deep, and this one is 8"),
        (llama, assistant, "it assists Gemma 4, and the target is a llama"),
        (changed(gemma4, embedding_length=128), assistant, "a target of width 64, and this one has 128"),
        (other, eagle3, "made for a target of width 64, and this one has 128"),
        (llama, changed(eagle3, target_layers=(0, 2, 5)), "it reads layer 5 of its target, which has 4"),
        (llama, changed(eagle3, target_layers=(0, 2, 4)), "which llama.cpp hides for llama models"),
        (mimo2, changed(eagle3, target_layers=(0, 2, 4)), None),
        (llama, changed(eagle3, target_layers=(0, 2)), "it reads 2 layers of its target"),
        (llama, changed(eagle3, target_layers=(2, 0, 3)), "in the order 2, 0, 3"),
        (llama, changed(eagle3, block_count=2), "it has 2 layers, and an EAGLE-3 head has one"),
        (llama, without(eagle3, "blk.0.attn_k.weight"), "it lacks the tensor blk.0.attn_k.weight"),
        (llama, without(eagle3, "output.weight"), "its map of the vocabulary"),
        (other, dflash, "made for a target of width 64, and this one has 128"),
        (llama, changed(dflash, target_layers=(0, 4)), "it reads the layers 0, 4 of its target, which has 4"),
        (llama, without(dflash, "fc.weight"), "it lacks the tensor fc.weight"),
        (header_at(tiny_gguf(architecture="gemma2")), eagle3, "exposes no layers of gemma2 models"),
    ]:
        found = misfit(target, head)
        assert (found is None) if why is None else why in found


def test_a_head_is_no_target_and_one_for_another_target_is_no_draft(files):
    with pytest.raises(localspec.LocalspecError, match="is a prediction head"):
        localspec.load(target=files["eagle3"][1])
    with pytest.raises(localspec.LocalspecError, match="cannot draft for"):
        localspec.load(target=files["mtp"][0], draft=files["assistant"][1])


def test_the_head_inside_a_hybrid_drafts_no_deeper_than_its_state_steps_back(folder):
    target = write_target(folder / "hybrid.gguf", Walk("qwen35", nextn=1))
    with localspec.load(target=target, threads=1, context_length=512) as session:
        stats = session.complete("tell me all of it", temperature=0, max_tokens=60, depth=8).stats
        assert stats.from_head > 5
        assert len(stats.drafted_by_position) == 3
    with localspec.load(target=target, draft="lookup", threads=1, context_length=512) as session:
        assert not session.pair.drafters
