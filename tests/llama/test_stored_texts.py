"""A text that was stored on disk comes back in another process as it was, where that saves time."""

import sys
from contextlib import contextmanager

import numpy as np
import pytest

from localspec.caches.state_file import Facts
from localspec.caches.store import Store, usage
from localspec.caches.writer import finish
from localspec.llama.stored_texts import FORGOTTEN_SECONDS, StoredTexts
from localspec.sampler.passes import standing
from tests.llama.restoring import compare
from tests.llama.rows import NEAR, logits_of, row_after
from tests.llama.test_saved_texts import KINDS, ROOM, SETTINGS

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
        disk = StoredTexts(Store(folder, 10**9), facts, capacity=made.capacity)
        disk.measured(*SLOW)
        made.saved_texts.disk = disk
        return made

    return make


def store(model, *, resting=False):
    model.store(resting=resting)
    finish(30)


def begin(model, prompt):
    """As a reply begins: the seconds of the disk, and the tokens that need not be read again."""
    seconds = model.recall(prompt)
    return seconds, model.rewind(standing(model.tokens, 0, prompt[:-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_after_a_return_from_the_disk_are_those_before(cache, tokens, kind):
    model, text = cache(kind), tokens(700)
    model.decode(text, 0)
    store(model)
    row = np.array(logits_of(model.decode([5], 1).rows[0]))
    other = cache(kind)
    seconds, kept = begin(other, [*text, 5])
    assert seconds > 0
    assert kept == 700
    # llama.cpp lays the cells of a window in order, which a ring is not: sums of halves change.
    most = NEAR if kind == "window" else 1e-6
    assert np.abs(logits_of(other.decode([5], 1).rows[0]) - row).max() <= most


@pytest.mark.parametrize("kind", KINDS)
def test_a_beginning_comes_back_as_far_as_the_cache_can_be_cut(cache, tokens, kind):
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
    assert np.abs(row - row_after(cache(kind), prompt)).max() < NEAR


def test_what_is_short_or_quickly_read_is_not_stored(cache, tokens, folder):
    model = cache()
    model.decode(tokens(500), 0)
    store(model)
    assert not model.wants_storing()
    model.decode(tokens(100), 0)
    assert model.wants_storing()
    model.saved_texts.disk.measured(10**9, 0.0)
    store(model)
    assert usage(folder)[0] == 0


def test_what_the_disk_reads_more_slowly_than_the_model_is_not_restored(cache, tokens):
    model, text = cache(), tokens(700)
    model.decode(text, 0)
    store(model)
    other = cache()
    disk = other.saved_texts.disk
    with clock_of(disk) as now:
        disk._disk.extend([(0.0, 0.1)] * 2)  # when, and seconds a byte
        assert begin(other, [*text, 5]) == (0.0, 0)
        now[0] = FORGOTTEN_SECONDS
        assert begin(other, [*text, 5])[1] == 700


def test_one_read_while_the_process_was_stopped_does_not_turn_the_disk_off(cache, tokens):
    model, text = cache(), tokens(700)
    model.decode(text, 0)
    store(model)
    other = cache()
    other.saved_texts.disk._disk.append((other.saved_texts.disk._clock(), 0.1))
    assert begin(other, [*text, 5])[1] == 700


def test_a_pass_that_was_stopped_does_not_make_a_quick_model_a_slow_one(cache, tokens):
    disk = cache().saved_texts.disk
    for seconds in (0.001, 0.001, 0.001, 3600.0):
        disk.measured(128, seconds)
    assert not disk.wants(tokens(700), 1000, resting=False)


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


def test_another_model_or_another_owner_has_other_texts(cache, tokens):
    model, text = cache(), tokens(700)
    model.decode(text, 0)
    store(model)
    assert begin(cache(key="another"), [*text, 5]) == (0.0, 0)


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
    model.saved_texts.disk._spent = -1e9  # time enough
    read(model, tokens(600), [1, 2])
    model.saved_texts.budget = model.saved_texts._saved[0].bytes
    read(model, tokens(600, seed=1), [1, 2])
    finish(30)
    assert usage(folder)[0] == 1


def test_a_damaged_state_is_never_given_to_llama_cpp(cache, tokens, folder, monkeypatch):
    model, text = cache(), tokens(700)
    model.decode(text, 0)
    store(model)
    (path,) = folder.glob("*.cache")
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr("localspec.llama.lane.restore_state", lambda *_: pytest.fail("it was"))
    assert begin(cache(), [*text, 5]) == (0.0, 0)
    assert usage(folder)[0] == 0


def test_a_text_that_is_longer_than_the_context_stays_where_it_is(cache, tokens):
    model, text = cache(), tokens(1000)
    model.decode(text, 0)
    store(model)
    assert begin(cache(length=768), text[:700]) == (0.0, 0)


@contextmanager
def clock_of(disk):
    """Set the disk's clock."""
    now = [0.0]
    disk._clock = lambda: now[0]
    disk._began = 0.0
    yield now


def test_copies_while_the_pair_rests_take_a_hundredth_of_the_time_at_most(cache, tokens):
    disk = cache().saved_texts.disk
    with clock_of(disk) as now:
        disk._disk.append((0.0, 1e-9))  # a fast disk
        now[0] = 50.0
        assert not disk.wants(tokens(700), 10**9)
        assert disk.wants(tokens(700), 10**9, resting=False)
        now[0] = 101.0
        assert disk.wants(tokens(700), 10**9)
        disk._spent = 1.0
        assert not disk.wants(tokens(700), 10**9)


def test_a_disk_that_fails_costs_one_sentence(cache, tokens, folder, caplog):
    folder.parent.joinpath("texts").touch()
    model = cache()
    model.decode(tokens(700), 0)
    for _ in range(2):
        store(model)
    assert len([each for each in caplog.messages if "cannot be stored" in each]) == 1
    assert not model.wants_storing()


def test_a_disk_that_failed_is_tried_again_later(cache, tokens, folder):
    """It may have been full for a moment."""
    folder.touch()
    model = cache()
    model.decode(tokens(700), 0)
    with clock_of(model.saved_texts.disk) as now:
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
    (said,) = [each for each in caplog.messages if "cannot be stored" in each]
    assert said.endswith("localspec made a mistake, please report it (KeyError: 'marks')")


def test_texts_after_a_return_are_those_of_a_fresh_read(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.llama.stored_texts.LEAST_SECONDS", 0.25)  # it is changed in there
    found = compare(tmp_path, 24)
    assert sum(found.values()) == 24
    assert not any("nothing" in outcome for outcome in found), found
