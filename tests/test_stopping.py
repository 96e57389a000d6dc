"""Ctrl-C while native work runs: it is heard, the work ends, and nothing is freed under it."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from localspec.stopping import (
    DelayedInterrupt,
    Stop,
    WorkStopped,
    current_stop,
    ending,
    interruptible,
    stopping_at,
)

press = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C goes to all processes of a console there")


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def until_asked(done):
    """Work that ends once it is asked to."""
    ctrl_c()
    while not current_stop().asked:
        time.sleep(0.001)
    done.append("ended")
    current_stop().check()


def test_work_gives_its_result_and_its_errors():
    assert interruptible(lambda: 7, Stop()) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, Stop())


@pytest.mark.process
@press
def test_ctrl_c_ends_work_and_waits_for_its_end():
    done = []
    with pytest.raises(KeyboardInterrupt):
        interruptible(lambda: until_asked(done), Stop())
    assert done == ["ended"]


def test_when_python_ends_a_check_ends_its_thread_and_stops_the_work_of_the_main_one(monkeypatch):
    over = Stop()
    over.ask()
    monkeypatch.setattr("localspec.stopping.ending", over)
    with ThreadPoolExecutor(1) as thread, pytest.raises(SystemExit):
        thread.submit(Stop().check).result()
    with pytest.raises(WorkStopped):
        Stop().check()


def test_work_of_a_thread_that_hears_no_ctrl_c_stays_in_it():
    found = []
    thread = threading.Thread(target=lambda: found.append(interruptible(threading.get_ident, Stop())))
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_where_ctrl_c_is_ignored_work_stays_in_its_thread():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert interruptible(threading.get_ident, Stop()) == threading.get_ident()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.process
@press
def test_a_handler_that_raises_nothing_ends_nothing():
    reported = []
    before = signal.signal(signal.SIGINT, lambda *_: reported.append(True))

    def work():
        ctrl_c()
        while not reported:
            time.sleep(0.001)
        return "whole"

    try:
        assert interruptible(work, Stop()) == "whole"
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.process
def test_work_that_heeds_nothing_is_left_behind_and_the_program_ends_without_it():
    code = """
import atexit, sys, time
from localspec.stopping import Stop, interruptible
from tests.test_stopping import ctrl_c
atexit.register(print, "memory is freed")
def work():
    ctrl_c()
    time.sleep(600)
try:
    interruptible(work, Stop(), timeout_seconds=0.01)
except KeyboardInterrupt:
    print("heard")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "heard\n", "")


@pytest.mark.process
@press
def test_ctrl_c_in_a_callback_of_c_is_heard_after_the_call():
    def callback(_):
        ctrl_c()
        return None

    called = ctypes.CFUNCTYPE(None, ctypes.c_int)(callback)
    after = []

    def call():
        with DelayedInterrupt():
            called(1)
            after.append("the call is over")

    with pytest.raises(KeyboardInterrupt):
        call()
    assert after
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_a_thread_heeds_is_its_own_and_nothing_afterwards():
    outer, inner = Stop(), Stop()
    with stopping_at(outer):
        with stopping_at(inner):
            assert current_stop() is inner
        assert current_stop() is outer
        assert interruptible(current_stop, inner) is inner
    assert current_stop() is ending
    inner.ask()
    with pytest.raises(WorkStopped):
        inner.check()
