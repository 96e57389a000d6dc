"""A text that was stored on disk comes back in another process as it was, where that saves time."""

import sys
import threading
import weakref
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from localspec.caches.store import Facts, Store, finish, usage
from localspec.llama.prompt_cache import FORGOTTEN_SECONDS, DiskPromptCache, PromptCache, PromptState
from localspec.sampler.passes import common_prefix_length
from tests.llama.restoring import compare
from tests.llama.rows import logits_of, near, row_after
from tests.llama.test_prompt_states import KINDS, ROOM, SETTINGS

SLOW = (100, 10.0)  # tokens and seconds: no disk is that slow


@pytest.fixture(autouse=True)
def disk_with_room(monkeypatch):
    monkeypatch.setattr("localspec.caches.store.LEFT_FREE", 0)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "texts"


@pytest.fixture
def cache(context, folder):
    """cache(kind) is a fresh cache, as after a start; its disk has measured a slow model."""

    def make(kind="llama", key="a model", **settings):
        made = context(ROOM | SETTINGS.get(kind, {}) | settings, **KINDS[kind])
        facts = Facts(key, sys.executable, not made.needs_checkpoints, (), (), 0.0)
        disk = DiskPromptCache(Store(folder, 10**9), facts, capacity=made.capacity, everything=True)
        disk.measured(*SLOW)
        made.prompt_cache.disk = disk
        return made

    return make


def store(model, *, resting=False):
    model.store(resting=resting)
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


def test_what_is_short_or_quickly_read_is_not_stored(cache, tokens, folder):
    model = cache()
    model.decode(tokens(500), 0)
    store(model)
    assert not model.wants_storing()
    model.decode(tokens(100), 0)
    assert model.wants_storing()
    model.prompt_cache.disk.measured(10**9, 0.0)
    store(model)
    assert usage(folder)[0] == 0


def test_what_the_disk_reads_more_slowly_than_the_model_is_not_restored(cache, tokens):
    model, text = cache(), tokens(700)
    model.decode(text, 0)
    store(model)
    other = cache()
    disk = other.prompt_cache.disk
    with clock_of(disk) as now:
        disk._disk.extend([(0.0, 0.1)] * 2)  # when, and seconds a byte
        assert begin(other, [*text, 5]) == (0.0, 0)
        now[0] = FORGOTTEN_SECONDS
        assert begin(other, [*text, 5])[1] == 700


def test_one_read_or_pass_while_the_process_was_stopped_changes_no_price(cache, tokens):
    model, text = cache(), tokens(700)
    model.decode(text, 0)
    store(model)
    disk = (other := cache()).prompt_cache.disk
    disk._disk.append((disk._clock(), 0.1))
    assert begin(other, [*text, 5])[1] == 700
    for seconds in (0.001, 0.001, 0.001, 3600.0):
        disk.measured(128, seconds)
    assert not disk.wants(tokens(700, seed=1), 1000, "", resting=False)


def test_a_text_that_is_stored_is_not_stored_again(cache, tokens, folder):
    model = cache()
    model.decode(tokens(700), 0)
    for _ in range(2):
        store(model)
    assert usage(folder)[0] == 1
    other = cache()
    begin(other, [*tokens(700), 5])
    assert not other.wants_storing()
    other.decode(tokens(60, seed=1), 0)
    assert not other.wants_storing()
    other.decode(tokens(9, seed=2), 0)
    assert other.wants_storing()


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
    model.prompt_cache.disk._spent = -1e9  # time enough
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

    facts = Facts("a model", sys.executable, True, (), (), 0.0)
    disk = DiskPromptCache(Slow(folder, 10**9), facts, capacity=10**6, everything=True)
    disk.measured(*SLOW)
    disk._spent = -1e9  # time enough
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
                saved.store([number, *range(700)], size, "", slot, resting=number % 2 == 0)
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
    monkeypatch.setattr("localspec.llama.shared.restore_state", lambda *_: pytest.fail("it was"))
    assert begin(cache(), [*text, 5]) == (0.0, 0)
    assert usage(folder)[0] == 0


def test_a_text_that_is_longer_than_the_context_or_of_another_model_stays_where_it_is(cache, tokens):
    model, text = cache(), tokens(1000)
    model.decode(text, 0)
    store(model)
    assert begin(cache(length=768), text[:700]) == begin(cache(key="another"), text) == (0.0, 0)


@contextmanager
def clock_of(disk):
    """Set the disk's clock."""
    now = [0.0]
    disk._clock = lambda: now[0]
    disk._began = 0.0
    yield now


def test_copies_while_the_pair_rests_take_a_hundredth_of_the_time_at_most(cache, tokens):
    disk = cache().prompt_cache.disk
    with clock_of(disk) as now:
        disk._disk.append((0.0, 1e-9))  # a fast disk
        now[0] = 50.0
        assert not disk.wants(tokens(700), 10**9, "")
        assert disk.wants(tokens(700), 10**9, "", resting=False)
        now[0] = 101.0
        assert disk.wants(tokens(700), 10**9, "")
        disk._spent = 1.0
        assert not disk.wants(tokens(700), 10**9, "")


def test_a_disk_that_fails_costs_one_sentence(cache, tokens, folder, caplog):
    folder.parent.joinpath("texts").touch()
    model = cache()
    model.decode(tokens(700), 0)
    for _ in range(2):
        store(model)
    assert len([each for each in caplog.messages if "are not stored" in each]) == 1
    assert not model.wants_storing()


def test_a_disk_that_failed_is_tried_again_later(cache, tokens, folder):
    """It may have been full for a moment."""
    folder.touch()
    model = cache()
    model.decode(tokens(700), 0)
    with clock_of(model.prompt_cache.disk) as now:
        store(model)
        folder.unlink()
        now[0] = FORGOTTEN_SECONDS
        store(model)
    assert usage(folder)[0] == 1


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


@pytest.mark.process
def test_texts_after_a_return_are_those_of_a_fresh_read(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.llama.prompt_cache.LEAST_SECONDS", 0.25)  # it is changed in there
    found = compare(tmp_path, 24)
    assert sum(found.values()) == 24
    assert not any("nothing" in outcome for outcome in found), found
