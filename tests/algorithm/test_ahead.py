"""Cycles run ahead of their reader, never more than allowed, and closing leaves nothing running."""

import random
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from localspec.algorithm.ahead import ahead
from localspec.stopping import Stop, current_stop, stopping_at


def counted(count, made, pause=0.0):
    for number in range(1, count + 1):
        time.sleep(pause)
        made.append(number)
        yield number


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_items_are_the_same_and_others_are_made_while_the_reader_has_the_last(most):
    made, more = [], []
    for number in ahead(counted(50, made), most):
        time.sleep(random.Random(number).choice((0, 0.002)))
        more.append(len(made) - number)
    assert made == list(range(1, 51))
    assert set(more) <= set(range(most + 2))
    assert most + 1 in more


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("read", [0, 1, 3])
def test_closing_waits_for_the_item_that_is_being_made_and_no_other(monkeypatch, read, most):
    made, begun, closing = [], threading.Semaphore(0), threading.Event()

    class Closing(threading.Thread):
        def join(self):
            closing.set()
            super().join()

    def slow():
        for number in range(1, 9):
            begun.release()
            if number > read:
                closing.wait(300)
                time.sleep(0.01)  # closing that did not wait would return before it
            made.append(number)
            yield number

    monkeypatch.setattr("localspec.algorithm.ahead.Thread", Closing)
    reader = ahead(slow(), most)
    for _ in range(read):
        next(reader)
    for _ in range(read + 1 if read else 0):
        assert begun.acquire(timeout=300)
    reader.close()
    assert len(made) == (read + 1 if read else 0)


def test_a_reply_is_away_while_its_reader_has_to_use_an_item():
    states, reading = [], threading.Event()

    @contextmanager
    def away():
        states.append(len(made))
        reading.set()
        yield
        states.append("back")

    made = []
    reader = ahead(counted(4, made), 1, away)
    assert next(reader) == 1
    assert reading.wait(300)
    assert states[0] in (2, 3)
    assert list(reader) == [2, 3, 4]
    assert states[-1] == "back"


def test_closing_ends_a_thread_that_was_away_with_its_last_item(monkeypatch):
    """It then puts the item and the end of the items, and waits for room for neither."""
    taken, waits, closing = threading.Event(), threading.Event(), threading.Event()

    class Closing(threading.Thread):
        def join(self):
            closing.set()
            super().join()

    def items():
        yield 1
        assert taken.wait(300)
        yield 2
        yield 3

    @contextmanager
    def away():
        waits.set()
        assert closing.wait(300)
        yield

    monkeypatch.setattr("localspec.algorithm.ahead.Thread", Closing)
    reader = ahead(items(), 1, away)
    assert next(reader) == 1
    taken.set()
    assert waits.wait(300)
    reader.close()
    assert closing.is_set()


def test_an_error_reaches_the_reader_after_the_items_before_it():
    def failing():
        yield 1
        raise ValueError("broken")

    reader = ahead(failing())
    assert next(reader) == 1
    with pytest.raises(ValueError, match="broken"):
        next(reader)


def test_the_work_has_its_readers_stop():
    with stopping_at(stop := Stop()):
        assert list(ahead(current_stop() is stop for _ in range(2))) == [True, True]


@pytest.mark.process
def test_a_program_that_ends_beside_a_reader_ends_by_itself():
    code = """
import threading, time
from localspec.algorithm.ahead import ahead
def items():
    while True:
        time.sleep(0.001)
        yield 1
def read():
    for _ in ahead(items()):
        time.sleep(0.001)
threading.Thread(target=read, daemon=True).start()
time.sleep(0.1)
raise SystemExit(7)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (7, "")
