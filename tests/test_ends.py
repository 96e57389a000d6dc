"""Programs that end beside a reply, and children of fork(): nothing hangs, nothing dies by a crash."""

import os
import random
import signal
import subprocess
import sys

import pytest

from tests.processes import informed

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
]

# With two threads, as OpenMP has none left in a child of fork().
BEGIN = """
import multiprocessing, os, signal, sys, threading, time, localspec
from localspec import demo
def ask(tokens=1500):
    return localspec.run("A long story " * 20, target=TARGET, max_tokens=tokens)
def beside():
    threading.Thread(target=ask, daemon=True).start()
    time.sleep(float(sys.argv[1]))
def answered(_):
    return len(ask(3).tokens)
def of_the_parent():
    try:
        session.run("Hi", max_tokens=2)
    except localspec.LocalspecError as error:
        return "another process" in str(error)
def child(work):
    if not (number := os.fork()):
        os._exit(0 if work() else 9)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
def hold_all_locks():  # as threads may that change something of a module at the moment of the fork
    kinds = type(threading.Lock()), type(threading.RLock())
    of_modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("localspec")]
    found = [value for names in of_modules for value in names.values() if not isinstance(value, type(sys))]
    inside = [part for value in found if hasattr(value, "__dict__") for part in vars(value).values()]
    locks = {id(lock): lock for lock in (*found, *inside) if isinstance(lock, kinds)}
    assert len(locks) > 3
    for lock in locks.values():
        lock.acquire()
    held.set()
    time.sleep(99)
held = threading.Event()
TARGET = demo.target_path()
"""
LOADED = "ask(2)\n"
# What a program does, and how it ends.
ENDS = {
    "beside a reply": (LOADED + "beside()", 0),
    "beside a load": ("beside()", 0),
    "sys.exit": (LOADED + "beside()\nsys.exit(3)", 3),
    "an exception": (LOADED + "beside()\nraise ValueError", 1),
    "SIGTERM": (LOADED + "beside()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)", -signal.SIGTERM),
    "SIGTERM that exits": (
        LOADED + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nbeside()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)",
        5,
    ),
    "unload": (LOADED + "beside()\nlocalspec.unload()\nsys.exit(4)", 4),
    "fork before a load": ("sys.exit(child(lambda: answered(0)))", 0),
    "fork after a load": (LOADED + "sys.exit(child(lambda: answered(0)))", 0),
    "fork beside a reply": (LOADED + "beside()\nsys.exit(child(lambda: answered(0)))", 0),
    "fork beside every lock": (
        LOADED + "localspec.run('Hi', grammar='start: \"a\"')\n"
        "threading.Thread(target=hold_all_locks, daemon=True).start()\nheld.wait()\n"
        "sys.exit(child(lambda: answered(0) and localspec.run('Hi', grammar='start: \"a\"')))",
        0,
    ),
    "a session of the parent": (
        "session = localspec.load(target=TARGET)\nsession.run('Hi', max_tokens=2)\n"
        "sys.exit(child(of_the_parent))",
        0,
    ),
    "a child that only ends": (LOADED + "beside()\nif not os.fork(): sys.exit(0)\nsys.exit(os.wait()[1])", 0),
    "a pool": (
        LOADED + "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    sys.exit(pool.map(answered, range(3)) != [3] * 3)",
        0,
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_as_it_wants(name, tmp_path):
    code, expected = ENDS[name]
    settings = {"LOCALSPEC_HOME": str(informed(tmp_path)), "LOCALSPEC_THREADS": "2"}
    program = [sys.executable, "-c", BEGIN + code, str(random.Random(name).uniform(0, 0.3))]
    ended = subprocess.run(program, env=os.environ | settings, capture_output=True, text=True, timeout=300)
    assert ended.returncode == expected, ended.stderr
