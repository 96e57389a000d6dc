"""What the machine has."""

import os
import subprocess
import sys

import pytest

from localspec.health.installed import has_backend
from localspec.llama.devices import backend_summary, default_gpu, devices
from localspec.llama.library import lib
from localspec.llama.threads import default_threads


def test_the_processor_is_a_device_with_memory():
    [cpu] = [device for device in devices() if device.kind == "cpu"]
    assert cpu.backend == "CPU"
    assert cpu.description
    assert 0 < cpu.free_bytes <= cpu.total_bytes
    assert not cpu.is_gpu


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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_threads_respect_the_processors_that_the_process_may_use():
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from localspec.llama.threads import default_threads; print(default_threads())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
