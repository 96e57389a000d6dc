"""The client of an engine process, when the process ends."""

import sys
import time

from localspec.engine.client import EngineProcess
from localspec.engine.messages import Died


def test_a_process_that_dies_without_a_word_is_reported():
    woken = []
    process = EngineProcess((sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    process.on_report = lambda: woken.append(True)
    process.start()
    deadline = time.monotonic() + 20
    while not woken and time.monotonic() < deadline:
        time.sleep(0.01)
    (died,) = process.drain()
    process.close()
    assert isinstance(died, Died)
    assert "SIGKILL" in died.what
    assert died.hint == ""
