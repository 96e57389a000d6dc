"""A text that was stored on disk comes back in another process as it was, where that saves time."""

import sys
import threading
import weakref
from functools import partial

import numpy as np
import pytest

from localspec.caches.prompt_cache import DiskPromptCache, PromptCache, PromptState
from localspec.caches.store import Facts, Store, finish, packed, usage
from localspec.sampler.passes import common_prefix_length
from tests.llama.rows import logits_of, near, row_after
from tests.llama.test_prompt_states import KINDS, ROOM, SETTINGS


@pytest.fixture(autouse=True)
def disk_with_room(monkeypatch):
    monkeypatch.setattr("localspec.caches.store.LEFT_FREE", 0)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "texts"


@pytest.fixture
def cache(context, folder):
    """cache(kind) is a fresh cache, as after a start; its disk has room."""

    def make(kind="llama", key="a model", **settings):
        made = context(ROOM | SETTINGS.get(kind, {}) | settings, **KINDS[kind])
        facts = Facts(key, sys.executable, not made.needs_checkpoints, (), ())
        disk = DiskPromptCache(Store(folder, 10**9), facts, capacity=made.capacity, everything=True)
        made.prompt_cache.disk = disk
        return made

    return make


def store(model):
    model.store()
    finish(300)


def begin(model, prompt):
    """As a reply begins: the seconds of the disk, and the tokens that need not be read again."""
    seconds = model.recall(prompt)
    return seconds, model.rewind(common_prefix_length(model.tokens, 0, prompt[:-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_after_a_return_from_the_disk_are_those_before(cache, load, tokens, kind):
    model, text = cache(kind), tokens(700)
    model.decode(text, 0)
    store(model)
    row = np.array(logits_of(model.decode([5], 1).rows[0]))
    other = cache(kind)
    seconds, kept = begin(other, [*text, 5])
    assert seconds > 0
    assert kept == 700
    # llama.cpp lays the cells of a window in order, which a ring is not: sums of halves change.
    most = near(kind, load(**KINDS[kind])) if kind == "window" else 1e-6
    assert np.abs(logits_of(other.decode([5], 1).rows[0]) - row).max() <= most


@pytest.mark.parametrize("kind", KINDS)
def test_a_beginning_comes_back_as_far_as_the_cache_can_be_cut(cache, load, tokens, kind):
    model, text = cache(kind, snapshots=0), tokens(800)
    model.decode(text[:600], 0)
    model.checkpoint(lasting=True)
    model.decode(text[600:], 0)
    store(model)
    other = cache(kind, snapshots=0)
    prompt = [*text[:650], *tokens(9, seed=1)]
    kept = begin(other, prompt)[1]
    assert kept == (600 if other.needs_checkpoints else 650)
    row = logits_of(other.decode(prompt[kept:], 1).rows[0])
    assert np.abs(row - row_after(cache(kind), prompt)).max() < near(kind, load(**KINDS[kind]))


def test_a_short_text_is_not_stored(cache, tokens, folder):
    model = cache()
    model.decode(tokens(500), 0)
    store(model)
    assert not model.wants_storing()
    assert usage(folder)[0] == 0
    model.decode(tokens(100), 0)
    assert model.wants_storing()


def test_a_text_is_stored_again_when_512_tokens_and_an_eighth_of_it_are_new(cache, tokens, folder):
    model = cache()
    model.decode(tokens(700), 0)
    for _ in range(2):
        store(model)
    assert usage(folder)[0] == 1
    other = cache(length=2048)
    begin(other, [*tokens(700), 5])
    assert not other.wants_storing()
    other.decode(tokens(511, seed=1), 0)
    assert not other.wants_storing()
    other.decode(tokens(1, seed=2), 0)
    assert other.wants_storing()
    disk, text = other.prompt_cache.disk, tokens(8000, seed=3)
    assert disk.wants(text, "")
    disk._store.write(packed(text), disk._facts, [])
    assert [disk.wants([*text, *tokens(more)], "") for more in (1141, 1142)] == [False, True]


def read(model, *texts):
    for text in texts:
        model.recall(text)
        model.rewind(0)
        model.decode(text, 0)


def test_texts_in_memory_are_stored_too(cache, tokens, folder):
    model = cache()
    read(model, *(tokens(600, seed=seed) for seed in range(3)))
    store(model)
    assert usage(folder)[0] == 3


def test_what_the_memory_has_no_room_for_is_stored(cache, tokens, folder):
    model = cache()
    read(model, tokens(600), [1, 2])
    model.prompt_cache.budget = 2 * model.prompt_cache._saved[0].bytes
    read(model, tokens(600, seed=1), [1, 2])
    read(model, tokens(600, seed=2), [1, 2])
    finish(300)
    assert usage(folder)[0] == 1


def test_texts_on_their_way_to_a_slow_disk_count_in_the_budget_of_the_memory(folder):
    """Arrays that are alive are counted, whoever holds them; what is copied while the pair rests counts too."""
    let, alive, budget, size = threading.Event(), [], 400_000, 100_000

    class Slow(Store):
        def write(self, tokens, facts, parts):
            assert let.wait(300)
            return super().write(tokens, facts, parts)

    facts = Facts("a model", sys.executable, True, (), ())
    disk = DiskPromptCache(Slow(folder, 10**9), facts, capacity=10**6, everything=True)
    saved = PromptCache(budget)
    saved.disk = disk

    def text(number):
        state = np.ones(size, np.uint8)
        alive.append(weakref.ref(state))
        return PromptState(list(range(number * 1000, number * 1000 + 600)), state, [], None)

    def held():
        return sum(size for state in alive if state() is not None)

    try:
        for number in range(12):
            saved.save(text(number))
            assert held() <= budget
            if number % 3 == 2:
                slot = partial(text, 100 + number)
                saved.store([number, *range(700)], size, "", slot)
                assert held() <= budget
        assert disk.given
    finally:
        let.set()
        finish(300)
    assert usage(folder)[0] > 0
    assert not disk.given


def test_a_damaged_state_is_never_given_to_llama_cpp(cache, tokens, folder, monkeypatch):
    model, text = cache(), tokens(700)
    model.decode(text, 0)
    store(model)
    (path,) = folder.glob("*.cache")
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr("localspec.llama.cached_text.restore_state", lambda *_: pytest.fail("it was"))
    assert begin(cache(), [*text, 5]) == (0.0, 0)
    assert usage(folder)[0] == 0


def test_a_text_that_is_longer_than_the_context_or_of_another_model_stays_where_it_is(cache, tokens):
    model, text = cache(), tokens(1000)
    model.decode(text, 0)
    store(model)
    assert begin(cache(length=768), text[:700]) == begin(cache(key="another"), text) == (0.0, 0)


def test_a_disk_that_fails_costs_one_sentence(cache, tokens, folder, caplog):
    folder.parent.joinpath("texts").touch()
    model = cache()
    model.decode(tokens(700), 0)
    for _ in range(2):
        store(model)
    assert len([each for each in caplog.messages if "are not stored" in each]) == 1
    assert not model.wants_storing()


@pytest.mark.parametrize("part", ["clean", "write"])
def test_an_unforeseen_failure_beside_everything_costs_one_sentence(cache, tokens, monkeypatch, caplog, part):
    def fail(*given):
        raise KeyError("marks")

    monkeypatch.setattr(Store, part, fail)
    model = cache()
    model.decode(tokens(700), 0)
    for _ in range(2):
        store(model)
    (words,) = [each for each in caplog.messages if "are not stored" in each]
    assert words.endswith("localspec made a mistake, please report it (KeyError: 'marks')")
