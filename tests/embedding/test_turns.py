"""Passes wait beside replies, and nowhere else."""

import threading

import pytest

from localspec.embedding import turns as turns_
from localspec.embedding.turns import ALONE_SECONDS, BESIDE_SECONDS, WAITS, Turns
from localspec.stopping import WorkStopped


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `spend` moves."""

    class Clock:
        now = 100.0

        def spend(self, seconds):
            self.now += seconds

    found = Clock()
    monkeypatch.setattr(turns_, "monotonic", lambda: found.now)
    return found


def waited(turns, clock):
    """The seconds that a turn waits, while `idle.wait` moves the clock."""
    began, wait = clock.now, turns._idle.wait

    def skip(seconds):
        clock.spend(seconds)
        return wait(0)

    turns._idle.wait = skip
    with turns.turn(bool):
        found = clock.now - began
        clock.spend(2.0)  # the time of the pass
    turns._idle.wait = wait
    return found


def test_beside_a_reply_each_pass_waits_five_times_the_last_one(clock):
    turns = Turns()
    with turns.reply():
        assert turns.seconds == BESIDE_SECONDS
        waits = [waited(turns, clock) for _ in range(3)]
    assert waits == pytest.approx([0, WAITS * 2, WAITS * 2])


def test_without_replies_and_after_the_last_of_two_nothing_waits(clock):
    turns = Turns()
    assert turns.seconds == ALONE_SECONDS
    with turns.reply():
        with turns.reply():
            waited(turns, clock)
        assert turns.seconds == BESIDE_SECONDS
    assert turns.seconds == ALONE_SECONDS
    assert waited(turns, clock) <= 0.11  # one look


def test_a_cancelled_request_gets_no_turn_and_a_pass_holds_the_lock():
    turns, lock = Turns(), threading.Lock()
    turns.held = lock
    with turns.turn(bool):
        assert lock.locked()
    with turns.reply(), pytest.raises(WorkStopped), turns.turn(lambda: True):
        pass
    assert not lock.locked()
