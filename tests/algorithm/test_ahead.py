"""One cycle runs ahead of its reader, never two, and closing leaves nothing running."""

import random
import subprocess
import sys
import threading
import time

import pytest

from localspec.algorithm.ahead import one_ahead
from localspec.stopping import Stop, current_stop, stopping_at


def counted(count, made, pause=0.0):
    for number in range(1, count + 1):
        time.sleep(pause)
        made.append(number)
        yield number


def test_the_items_are_the_same_and_one_is_made_while_the_reader_has_the_last():
    made, ahead = [], []
    for number in one_ahead(counted(50, made)):
        time.sleep(random.Random(number).choice((0, 0.002)))
        ahead.append(len(made) - number)
    assert made == list(range(1, 51))
    assert set(ahead) <= {0, 1}
    assert 1 in ahead


def test_reader_and_maker_work_at_the_same_time():
    met = threading.Barrier(2, timeout=10)

    def meeting():
        yield 0
        met.wait()
        yield 1

    for number in one_ahead(meeting()):
        if number == 0:
            met.wait()  # would raise if the next item were made only after this one was used


@pytest.mark.parametrize("read", [0, 1, 3])
def test_closing_waits_for_the_item_that_is_being_made(read):
    made = []
    reader = one_ahead(counted(9, made, pause=0.01))
    for _ in range(read):
        next(reader)
    reader.close()
    before = len(made)
    time.sleep(0.05)
    assert len(made) == before == (read + 1 if read else 0)


def test_an_error_reaches_the_reader_after_the_items_before_it():
    def failing():
        yield 1
        raise ValueError("broken")

    reader = one_ahead(failing())
    assert next(reader) == 1
    with pytest.raises(ValueError, match="broken"):
        next(reader)


def test_the_work_has_its_readers_stop():
    with stopping_at(stop := Stop()):
        assert list(one_ahead(current_stop() is stop for _ in range(2))) == [True, True]


def test_a_program_that_ends_beside_a_reader_ends_by_itself():
    code = """
import threading, time
from localspec.algorithm.ahead import one_ahead
def items():
    while True:
        time.sleep(0.001)
        yield 1
def read():
    for _ in one_ahead(items()):
        time.sleep(0.001)
threading.Thread(target=read, daemon=True).start()
time.sleep(0.1)
raise SystemExit(7)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (7, "")
