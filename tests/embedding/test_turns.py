"""Passes wait beside replies, and nowhere else."""

import threading

import pytest

from localspec.embedding import model
from localspec.embedding.model import ALONE_SECONDS, BESIDE_SECONDS, WAITS, Turns
from localspec.stopping import WorkStopped


@pytest.fixture
def waited(monkeypatch):
    """waited(turns): the seconds that a turn waits, before a pass of 2 seconds, on a clock that only they move."""
    now = [100.0]
    monkeypatch.setattr(model, "monotonic", lambda: now[0])

    def spend(seconds):
        now[0] += seconds

    def measured(turns):
        began, turns._ended.wait = now[0], spend
        with turns.turn(bool):
            found = now[0] - began
            spend(2.0)
        return found

    return measured


def test_beside_a_reply_each_pass_waits_five_times_the_last_one_and_without_one_nothing_waits(waited):
    turns = Turns()
    with turns.reply():
        with turns.reply():
            assert [waited(turns) for _ in range(3)] == pytest.approx([0, WAITS * 2, WAITS * 2])
        assert turns.seconds == BESIDE_SECONDS
    assert turns.seconds == ALONE_SECONDS
    assert waited(turns) == 0


def test_a_cancelled_request_gets_no_turn_and_a_pass_holds_the_lock():
    turns, lock = Turns(), threading.Lock()
    turns.held = lock
    with turns.turn(bool):
        assert lock.locked()
    with turns.reply(), pytest.raises(WorkStopped), turns.turn(lambda: True):
        pass
    assert not lock.locked()
