"""A cache goes from one conversation to another and back; states are copied for those that may come back."""

import numpy as np
import pytest

import localspec
from localspec.llama import cached_text
from localspec.sampler.passes import common_prefix_length
from tests.llama.rows import NEAR, logits_of, near, row_after

ROOM = {"length": 1024, "saved_bytes": 100_000_000, "checkpoint_bytes": 100_000_000}
KINDS = {
    "llama": {},
    "quantised": {"embedding": 128, "kv_heads": 4},
    "window": {"architecture": "gemma2", "window": 250, "layers": 4},
    "hybrid": {"architecture": "qwen35"},
    "recurrent": {"architecture": "mamba"},
}
SETTINGS = {"quantised": {"kv_type": "q8_0"}, "hybrid": {"snapshots": 3}}


@pytest.fixture
def cache(context):
    return lambda kind="llama", **settings: context(ROOM | SETTINGS.get(kind, {}) | settings, **KINDS[kind])


def ask(cache, prompt):
    """As a reply begins: the tokens that need not be read again."""
    cache.recall(prompt)
    kept = cache.rewind(common_prefix_length(cache.tokens, 0, prompt[:-1]))
    for _ in cache.prefill(prompt[kept:-1]):
        pass
    return kept, logits_of(cache.decode(prompt[-1:], 1).rows[0])


@pytest.mark.parametrize("kind", KINDS)
def test_two_conversations_that_alternate_are_read_once(cache, load, tokens, kind):
    model, one, other = cache(kind), tokens(400), tokens(500, seed=1)
    ask(model, one)
    assert ask(model, other)[0] == 0
    kept, row = ask(model, one := [*one, 7, 8])
    assert kept == 400
    assert np.abs(row - row_after(cache(kind), one)).max() < near(kind, load(**KINDS[kind]))
    kept, row = ask(model, other := [*other, 9])
    assert kept == 500
    assert np.abs(row - row_after(cache(kind), other)).max() < near(kind, load(**KINDS[kind]))


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


@pytest.mark.parametrize(("length", "settings"), [(200, {}), (400, {"saved_bytes": 0})])
def test_a_short_text_and_one_without_room_are_read_again(cache, tokens, length, settings):
    model, text = cache(**settings), tokens(length)
    ask(model, text)
    ask(model, tokens(400, seed=1))
    assert ask(model, text)[0] == 0


def test_the_text_that_was_saved_first_makes_room(cache, tokens):
    probe, texts = cache(), [tokens(400, seed=seed) for seed in range(3)]
    probe.decode(texts[0], 0)
    probe.recall([1])
    (saved,) = probe.prompt_cache._saved
    model = cache(saved_bytes=2 * saved.bytes + saved.bytes // 2)
    for text in (*texts, [1, 2]):
        ask(model, text)
    assert ask(model, [*texts[0], 1])[0] == 0
    assert ask(model, [*texts[2], 1])[0] == 400


def test_a_branch_of_a_newer_text_makes_room_before_an_older_conversation(cache, tokens):
    model, other, common = cache(), tokens(400), tokens(300, seed=1)
    branches = [[*common, *tokens(100, seed=seed)] for seed in (2, 3)]
    ask(model, other)
    model.recall([1])
    (saved,) = model.prompt_cache._saved
    model.prompt_cache.budget = 2 * saved.bytes + saved.bytes // 2
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


LONG = 300  # tokens: more than are read again about as fast as they are saved


@pytest.fixture
def session(monkeypatch, home_of_processes):
    with localspec.load(context_length=2048) as loaded:
        yield loaded


@pytest.fixture
def copies(session, monkeypatch):
    """The lengths of the states that were copied."""
    made, real = [], cached_text.state_of

    def counted(*arguments, **options):
        made.append(session.pair.target.length)
        return real(*arguments, **options)

    monkeypatch.setattr(cached_text, "state_of", counted)
    return made


def answered(session, messages):
    vocabulary = session.pair.vocabulary
    ends = {token: -100.0 for token in range(vocabulary.size) if vocabulary.is_end(token)}
    return session.run(messages, max_tokens=LONG, logit_bias=ends, temperature=0)


@pytest.mark.process
def test_a_thinking_model_s_turns_and_repeated_replies_save_no_dead_branch(session, copies):
    messages = [{"role": "user", "content": "Tell me a story."}]
    for turn in range(3):
        reply = answered(session, messages)
        assert answered(session, messages).text == reply.text
        # The history leaves out what came first, as it leaves out reasoning.
        answer = {"role": "assistant", "content": reply.text[-40:]}
        messages = [*messages, answer, {"role": "user", "content": f"And then, {turn}?"}]
    assert copies == []


@pytest.mark.process
def test_another_conversation_is_saved_with_its_long_reply_and_comes_back(session, copies):
    first = [{"role": "user", "content": "Tell me a story."}]
    reply = answered(session, first)
    answered(session, [{"role": "user", "content": "Name a city."}])
    assert len(copies) == 1
    again = [*first, {"role": "assistant", "content": reply.text}, {"role": "user", "content": "Go on."}]
    events = session.stream(again, max_tokens=1)
    assert next(events).reused_tokens > LONG
    events.close()


def test_a_raw_text_that_is_continued_saves_nothing_and_another_text_does(session, copies):
    text = "Once upon a time " * 80
    session.complete(text, max_tokens=4)
    session.complete(text + "there was", max_tokens=4)
    assert copies == []
    session.complete("Something else", max_tokens=4)
    assert len(copies) == 1
