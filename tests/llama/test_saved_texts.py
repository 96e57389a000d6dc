"""A cache that goes from one conversation to another and back reads neither again."""

import numpy as np
import pytest

from localspec.sampler.passes import standing
from tests.llama.rows import NEAR, logits_of, row_after

ROOM = {"length": 1024, "saved_bytes": 100_000_000, "checkpoint_bytes": 100_000_000}
KINDS = {
    "llama": {},
    "quantised": {"embedding": 128, "kv_heads": 4},
    "window": {"architecture": "gemma2", "window": 250, "layers": 4},
    "hybrid": {"architecture": "qwen35"},
    "recurrent": {"architecture": "mamba"},
}
SETTINGS = {"quantised": {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}, "hybrid": {"snapshots": 3}}


@pytest.fixture
def cache(context):
    return lambda kind="llama", **settings: context(ROOM | SETTINGS.get(kind, {}) | settings, **KINDS[kind])


def ask(cache, prompt):
    """As a reply begins: the tokens that need not be read again."""
    cache.recall(prompt)
    kept = cache.rewind(standing(cache.tokens, 0, prompt[:-1]))
    for _ in cache.prefill(prompt[kept:-1]):
        pass
    return kept, logits_of(cache.decode(prompt[-1:], 1).rows[0])


@pytest.mark.parametrize("kind", KINDS)
def test_two_conversations_that_alternate_are_read_once(cache, tokens, kind):
    model, one, other = cache(kind), tokens(400), tokens(500, seed=1)
    ask(model, one)
    assert ask(model, other)[0] == 0
    kept, row = ask(model, one := [*one, 7, 8])
    assert kept == 400
    assert np.abs(row - row_after(cache(kind), one)).max() < NEAR
    kept, row = ask(model, other := [*other, 9])
    assert kept == 500
    assert np.abs(row - row_after(cache(kind), other)).max() < NEAR


def test_what_they_share_is_not_read_again_either(cache, tokens):
    model, common = cache(), tokens(300)
    one, other = [*common, *tokens(300, seed=1)], [*common, *tokens(300, seed=2)]
    ask(model, one)
    assert ask(model, other)[0] == 300
    assert ask(model, [*one, 5])[0] == 600


def test_checkpoints_come_along(cache, tokens):
    model, text = cache("hybrid", snapshots=0), tokens(600)
    model.decode(text[:400], 0)
    model.checkpoint(lasting=True)
    model.decode(text[400:], 0)
    model.recall(tokens(20, seed=1))
    assert model.rewind(0) == 0
    model.recall(text)
    assert model.length == 600
    assert model.rewind(500) == 400
    row = logits_of(model.decode(text[400:500], 1).rows[0])
    assert np.abs(row - row_after(cache("hybrid"), text[:500])).max() < NEAR


def test_a_short_text_is_read_again(cache, tokens):
    model, short = cache(), tokens(200)
    ask(model, short)
    ask(model, tokens(400, seed=1))
    assert ask(model, short)[0] == 0


def test_the_text_that_was_saved_first_makes_room(cache, tokens):
    probe, texts = cache(), [tokens(400, seed=seed) for seed in range(3)]
    probe.decode(texts[0], 0)
    probe.recall([1])
    (saved,) = probe.saved_texts._saved
    model = cache(saved_bytes=2 * saved.bytes + saved.bytes // 2)
    for text in (*texts, [1, 2]):
        ask(model, text)
    assert ask(model, [*texts[0], 1])[0] == 0
    assert ask(model, [*texts[2], 1])[0] == 400


def test_a_text_that_went_on_takes_the_place_of_what_it_was(cache, tokens):
    model, text = cache(), tokens(400)
    for prompt in (text, [1, 2], [*text, 3], [1, 2], [*text, 3, 4]):
        ask(model, prompt)
    ask(model, [1, 2])
    assert len(model.saved_texts._saved) == 1


def test_without_room_nothing_is_saved(cache, tokens):
    model, text = cache(saved_bytes=0), tokens(400)
    ask(model, text)
    ask(model, [1, 2])
    assert ask(model, text)[0] == 0


def test_a_branch_of_a_newer_text_makes_room_before_an_older_conversation(cache, tokens):
    model, other, common = cache(), tokens(400), tokens(300, seed=1)
    branches = [[*common, *tokens(100, seed=seed)] for seed in (2, 3)]
    ask(model, other)
    model.recall([1])
    (saved,) = model.saved_texts._saved
    model.saved_texts.budget = 2 * saved.bytes + saved.bytes // 2
    for text in (*branches, [1, 2]):
        ask(model, text)
    assert ask(model, [*other, 1])[0] == 400
    assert ask(model, [*branches[1], 1])[0] == 400


def test_what_no_prompt_can_ask_for_is_not_saved(cache, tokens):
    model, text = cache(), tokens(400)
    ask(model, text)
    model.recall([1, 2], save=False)
    model.rewind(0)
    assert ask(model, text)[0] == 0


def test_an_equal_checkpoint_of_a_draft_uses_its_memory_again(cache, tokens):
    model = cache("hybrid", snapshots=0)
    states = []
    for token in tokens(4):
        model.decode([token], 0)
        model.checkpoint(lasting=False)
        states.append(model._checkpoints._kept[-1].state)
    assert all(state is states[0] for state in states)
