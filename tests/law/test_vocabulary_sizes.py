"""Pairs whose vocabularies are not of one size, which llama.cpp allows: replies hold any token of the target's."""

import pytest

import localspec

FLAT = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # so that rare tokens come up


@pytest.fixture
def load(tiny_gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))

    def load(target, draft):
        """A pair with vocabularies of these sizes."""
        shape = {"vocab": "spm", "seed": 1}
        return localspec.load(
            target=tiny_gguf(vocab_size=target, **shape),
            draft=tiny_gguf(vocab_size=draft, noise=0.3, **shape),
        )

    return load


@pytest.mark.parametrize(("target", "draft"), [(400, 340), (340, 400)])
def test_every_reply_comes_to_its_end(load, target, draft):
    kept, largest = 0, 0
    with load(target, draft) as session:
        for seed in range(3):
            for options in (FLAT, FLAT | {"top_k": 300}, {"temperature": 0.0}):
                reply = session.run("hello there my friend", max_tokens=40, depth=4, seed=seed, **options)
                kept += reply.stats.accepted
                largest = max(largest, *reply.tokens)
    assert kept > 0
    assert largest >= draft or target < draft, "the draft read tokens that it lacks"
