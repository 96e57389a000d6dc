"""A device of another machine is lost when it is silent, not when this process was stopped."""

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")

CALL = """
import time
from localspec.llama.watch import waiting_for
with waiting_for("a server", seconds=1.0):
    print("waits", flush=True)
    for _ in range({steps}):
        time.sleep(0.05)
"""


def ended(steps, stopped_seconds=0.0):
    """How a process ends that waits `steps` times 0.05 s for a device, and is stopped meanwhile."""
    waits = subprocess.Popen(
        [sys.executable, "-c", CALL.format(steps=steps)], stdout=-1, stderr=-1, text=True
    )
    waits.stdout.readline()
    if stopped_seconds:
        waits.send_signal(signal.SIGSTOP)
        time.sleep(stopped_seconds)
        waits.send_signal(signal.SIGCONT)
    return waits.communicate()[1], waits.returncode


def test_a_process_that_was_stopped_gives_the_server_its_whole_time():
    assert ended(steps=12, stopped_seconds=2.5) == ("", 0)


def test_a_silent_server_is_lost():
    said, code = ended(steps=100)
    assert code == 1
    assert "a server does not answer any more: nothing came for 1 s" in said
