"""What cannot step back comes back to a checkpoint, or says that it has nothing left."""

import numpy as np
import pytest

from localspec.errors import RollbackUnsupported
from localspec.llama import cached_text
from localspec.llama.library import lib
from tests.llama.rows import NEAR, row_after

ROOM = 100_000_000  # bytes
RECURRENT = ["qwen35", "lfm2", "mamba"]
WINDOW = {"architecture": "gemma2", "window": 250, "layers": 4}  # batches of 4 tokens leave 6 of 256 cells
NARROW = {"length": 2048, "batch_size": 4, "rows_max": 1}


@pytest.mark.parametrize("architecture", RECURRENT)
@pytest.mark.parametrize("snapshots", [0, 3])
def test_what_follows_a_checkpoint_is_exactly_what_followed_it_before(
    context, tokens, architecture, snapshots
):
    settings = {"snapshots": snapshots, "checkpoint_bytes": ROOM}
    model = context(settings, architecture=architecture)
    model.decode(tokens(40), 0)
    model.checkpoint(lasting=True)
    expected = np.array(model.decode(tokens(9, seed=1), 1).rows[0])
    model.decode(tokens(30, seed=2), 3)
    if model.rollback_limit:
        model.rollback(model.length - 2)  # the state is now a snapshot, which a checkpoint must not mix up
    assert model.rewind(45) == 40
    assert model.tokens == tokens(40)
    np.testing.assert_allclose(model.decode(tokens(9, seed=1), 1).rows[0], expected, atol=NEAR)
    assert model.rewind(40) == 40
    np.testing.assert_allclose(model.decode(tokens(9, seed=1), 1).rows[0], expected, atol=NEAR)


def test_a_state_that_was_stepped_back_is_the_one_that_a_checkpoint_keeps(context, tokens):
    model = context({"snapshots": 3, "checkpoint_bytes": ROOM}, architecture="qwen35")
    model.decode(tokens(40), 0)
    model.rollback(38)
    model.checkpoint(lasting=True)
    expected = np.array(model.decode([7, 8], 1).rows[0])
    model.decode(tokens(9), 0)
    assert model.rewind(38) == 38
    np.testing.assert_allclose(model.decode([7, 8], 1).rows[0], expected, atol=NEAR)


@pytest.mark.parametrize("architecture", RECURRENT)
def test_snapshots_from_before_a_checkpoint_are_not_stepped_back_to(context, tokens, architecture):
    model = context({"snapshots": 3, "checkpoint_bytes": ROOM}, architecture=architecture)
    model.decode(tokens(10), 0)
    model.checkpoint(lasting=True)
    model.decode(tokens(9), 0)
    assert model.rewind(12) == 10
    with pytest.raises(RollbackUnsupported):
        model.rollback(8)
    assert model.rewind(9) == 0


def test_a_checkpoint_of_another_text_is_forgotten(context, tokens):
    model = context({"checkpoint_bytes": ROOM}, architecture="qwen35")
    for part in range(3):
        model.decode(tokens(10, seed=part), 0)
        model.checkpoint(lasting=True)
    assert model.rewind(25) == 20
    assert model.rewind(19) == 10
    model.decode(tokens(30, seed=9), 0)
    assert model.rewind(39) == 10
    assert model.rewind(5) == 0
    assert model._checkpoints.bytes == 0


def test_the_oldest_checkpoint_gives_way_first_and_a_budget_is_kept(context, tokens):
    probe = context({"checkpoint_bytes": ROOM}, architecture="qwen35")
    probe.decode(tokens(10), 0)
    probe.checkpoint(lasting=True)
    size = probe._checkpoints.bytes
    model = context({"checkpoint_bytes": 2 * size}, architecture="qwen35")
    for part in range(3):
        model.decode(tokens(10, seed=part), 0)
        model.checkpoint(lasting=True)
    assert model._checkpoints.bytes == 2 * size
    assert model.rewind(25) == 20
    assert model.rewind(19) == 0
    four = context({"checkpoint_bytes": 3 * size}, architecture="qwen35")
    for part in range(4):
        four.decode(tokens(10, seed=part), 0)
        four.checkpoint(lasting=True)
    assert [four.rewind(keep) for keep in (35, 25)] == [30, 10]
    small = context({"checkpoint_bytes": size - 1}, architecture="qwen35")
    small.decode(tokens(10), 0)
    small.checkpoint(lasting=True)
    assert small._checkpoints.bytes == 0


def test_a_checkpoint_that_was_not_to_last_gives_way_to_the_next(context, tokens):
    model = context({"checkpoint_bytes": ROOM}, architecture="qwen35")
    for part, lasting in enumerate([True, False, False]):
        model.decode(tokens(10, seed=part), 0)
        model.checkpoint(lasting=lasting)
    model.decode([5], 0)
    assert model.rewind(30) == 30
    assert model.rewind(29) == 10


@pytest.mark.parametrize("shape", [{}, {"architecture": "gemma2", "window": 1024}], ids=["dense", "as long"])
def test_what_can_always_step_back_takes_no_checkpoints(context, tokens, shape):
    model = context({"checkpoint_bytes": ROOM}, **shape)
    model.decode(tokens(100), 0)
    model.checkpoint(lasting=True)
    assert not model.needs_checkpoints
    assert not context({"steps_back": True}, **shape).shared.spare
    assert model._checkpoints.bytes == 0
    assert model.rewind(3) == 3


# windows


def test_a_rejected_batch_leaves_no_trace_behind_a_window(context, tokens):
    settings = {"length": 2048, "batch_size": 16}
    rolled, plain = context(settings, **WINDOW), context(settings, **WINDOW)
    for model in (rolled, plain):
        list(model.prefill(tokens(600)))
    for step in range(40):
        rolled.decode(tokens(9, seed=step), 9)
        rolled.rollback(600 + step)
        first, second = (model.decode([step + 5], 1).rows[0] for model in (rolled, plain))
        np.testing.assert_allclose(first, second, atol=NEAR)


def test_a_cache_of_a_window_steps_back_as_far_as_it_reaches_and_no_further(context, tokens):
    model, fresh = context({"length": 2048, "batch_size": 4}, **WINDOW), context({"length": 2048}, **WINDOW)
    list(model.prefill(tokens(700)))
    first = lib.llama_memory_seq_pos_min(model.shared.memory, 0)
    nearest = first + 250 - 1
    with pytest.raises(RollbackUnsupported):
        model.rollback(nearest - 1)
    assert model.length == 700
    model.rollback(nearest)
    row = np.array(model.decode([9], 1).rows[0])
    assert np.abs(row - row_after(fresh, [*tokens(700)[:nearest], 9])).max() < NEAR


def test_behind_the_window_a_checkpoint_brings_the_window_back(context, tokens):
    model = context({"length": 2048, "batch_size": 4, "checkpoint_bytes": ROOM}, **WINDOW)
    list(model.prefill(tokens(400)))
    model.checkpoint(lasting=True)
    expected = np.array(model.decode([9], 1).rows[0])
    list(model.prefill(tokens(500, seed=1)))
    assert model.rewind(420) == 400
    np.testing.assert_allclose(model.decode([9], 1).rows[0], expected, atol=NEAR)
    model.rewind(400)
    list(model.prefill(tokens(500, seed=1)))
    assert model.rewind(399) == 0


@pytest.mark.parametrize("seed", [1, 3])
def test_a_windowed_draft_never_reads_a_window_with_holes(context, seed):
    """Many batches of one token, some of which are taken back: with 6 cells to spare not all can be."""
    random = np.random.default_rng(seed)
    draft, fresh = context({**NARROW, "checkpoint_bytes": ROOM}, **WINDOW), context(NARROW, **WINDOW)
    text = random.integers(3, 250, 230 + 40 * seed).tolist()
    lost = 0
    for _ in range(30):
        list(draft.prefill(text[draft.length :]))
        proposal = random.integers(3, 250, random.integers(1, 13)).tolist()
        draft.checkpoint(lasting=False)
        for token in proposal:
            draft.decode([token], 1)
        text += proposal[: random.integers(0, len(proposal) + 1)]
        lost += draft.rewind(len(text)) < len(text)
        first = lib.llama_memory_seq_pos_min(draft.shared.memory, 0)
        assert first <= max(0, draft.length + 1 - 250)
        assert draft.tokens == text[: draft.length]
    assert lost
    list(draft.prefill(text[draft.length :]))
    row = np.array(draft.decode([9], 1).rows[0])
    assert np.abs(row - row_after(fresh, [*text, 9])).max() < NEAR


@pytest.mark.parametrize("architecture", RECURRENT)
def test_a_state_that_stays_on_the_device_is_the_one_that_a_copy_would_hold(
    context, tokens, architecture, monkeypatch
):
    """A draft's cycles, some of which end before the text of the cycle: no state comes to the computer."""
    chance = np.random.default_rng(1)
    made = ({"checkpoint_bytes": ROOM, "steps_back": here} for here in (True, False))
    kept, copied = (context(settings, architecture=architecture) for settings in made)
    taken, copy = [], cached_text.state_of
    monkeypatch.setattr(
        cached_text, "state_of", lambda *given, **how: taken.append(given[0]) or copy(*given, **how)
    )
    length = 0
    for cycle in range(30):
        if cycle % 10 == 9:
            length = int(chance.integers(length + 1))
        lasting, text = cycle == 12, tokens(int(chance.integers(1, 5)), seed=cycle)
        rows = []
        for draft in (kept, copied):
            draft.rewind(min(length, draft.length))
            rows.append(np.array(draft.decode(text, 1).rows[0]))
            draft.checkpoint(lasting=lasting)
            for token in tokens(4, seed=100 + cycle):
                rows[-1] = rows[-1] + draft.decode([token], 1).rows[0]
        assert kept.tokens == copied.tokens
        np.testing.assert_allclose(*rows, atol=NEAR)
        length = kept.length - int(chance.integers(5))
    assert sum(of == kept.shared.handle for of in taken) == 1, "the lasting one"
    assert sum(of == copied.shared.handle for of in taken) == 30
