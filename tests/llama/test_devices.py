"""What the machine has, and when a device of another machine is lost."""

import os
import signal
import subprocess
import sys
import time

import pytest

from localspec.llama.devices import backend_summary, default_gpu, devices
from localspec.llama.library import lib
from localspec.llama.threads import default_threads
from localspec.machine.llama_build import has_backend


def test_the_processor_is_a_device_with_memory():
    [cpu] = [device for device in devices() if device.kind == "cpu"]
    assert cpu.backend == "CPU"
    assert cpu.description
    assert 0 < cpu.free_bytes <= cpu.total_bytes
    assert not cpu.is_gpu


@pytest.mark.process
def test_devices_come_from_the_library_that_decodes():
    """The wheels carry copies of every library; another copy would have no devices registered, or its own."""
    if not has_backend("rpc"):  # it counts as a GPU without having any
        assert (
            lib.llama_supports_gpu_offload() == backend_summary().supports_gpu == (default_gpu() is not None)
        )
    script = "from localspec.llama.devices import devices; devices(); print(open('/proc/self/maps').read())"
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    maps = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    files = {line.split("/")[-1] for line in maps.splitlines() if "libggml-base" in line}
    assert len(files) == 1


def test_the_summary_names_versions():
    summary = backend_summary()
    assert summary.binding_version.startswith("0.3")
    assert summary.llama_version
    assert "CPU" in summary.system_info


def test_threads_are_between_one_and_the_logical_processors():
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_threads_respect_the_processors_that_the_process_may_use():
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from localspec.llama.threads import default_threads; print(default_threads())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


CALL = """
import time
from localspec.llama.lifetimes import waiting_for
with waiting_for("a server", seconds=2.0):
    print("waits", flush=True)
    for _ in range({steps}):
        time.sleep(0.05)
"""


def ended(steps, stopped_seconds=0.0):
    """How a process ends that waits `steps` times 0.05 s for a device, and is stopped meanwhile."""
    command = [sys.executable, "-c", CALL.format(steps=steps)]
    waits = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)
    waits.stdout.readline()
    if stopped_seconds:
        waits.send_signal(signal.SIGSTOP)
        time.sleep(stopped_seconds)
        waits.send_signal(signal.SIGCONT)
    return waits.communicate()[1], waits.returncode


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")
def test_a_process_that_was_stopped_gives_the_server_its_whole_time():
    assert ended(steps=12, stopped_seconds=3.5) == ("", 0)


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")
def test_a_silent_server_is_lost():
    words, code = ended(steps=100)
    assert code == 1
    assert "a server does not answer any more: it sent nothing for 2 s" in words
