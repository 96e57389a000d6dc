"""How many threads decoding should use: the physical cores that this process may run on."""

import ctypes
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from localspec.errors import BadSetting

_MOST = 512  # GGML_MAX_N_THREADS; beyond it ggml writes past its tables


def thread_count(wanted: int | None) -> int:
    """What was asked for, or the physical cores. Raises BadSetting beyond what ggml can run."""
    if wanted is not None and not 1 <= wanted <= _MOST:
        raise BadSetting(
            f"llama.cpp cannot run {wanted:,} threads",
            hint=f"use 1 to {_MOST}; the physical cores are the default",
        )
    return wanted or min(default_threads(), _MOST)


def default_threads() -> int:
    """Physical cores, at least 1: two threads on one core slow ggml down, as sharing it with others does."""
    count = _CORES.get(sys.platform, os.cpu_count)()
    return max(1, count or os.cpu_count() or 1)


def _linux_cores() -> int:
    """Cores that this process may run on, without their hyperthreads and within a container's quota."""
    allowed = os.sched_getaffinity(0)
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        count = len({Path(topology.format(cpu)).read_text() for cpu in allowed})
    except OSError:
        count = len(allowed)
    return min(count, _cgroup_cores() or count)


def _cgroup_cores() -> int | None:
    """Whole cores that a container's CPU quota amounts to; None without a quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return None


def _macos_cores() -> int | None:
    """The fast cores: a slow one holds the others up, because every thread gets an equal share."""
    library = ctypes.CDLL(None)
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
        value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
        if library.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return value.value
    return None


def _windows_cores() -> int | None:
    """Entries of GetLogicalProcessorInformationEx(RelationProcessorCore): one for each core, size inside."""
    call = getattr(ctypes, "windll").kernel32.GetLogicalProcessorInformationEx  # noqa: B009  Windows only
    size = ctypes.c_uint32(0)
    call(0, None, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    if not size.value or not call(0, buffer, ctypes.byref(size)):
        return None
    cores, offset = 0, 0
    while offset < size.value:
        offset += int.from_bytes(buffer.raw[offset + 4 : offset + 8], "little")
        cores += 1
    return cores


_CORES: dict[str, Callable[[], int | None]] = {
    "linux": _linux_cores,
    "darwin": _macos_cores,
    "win32": _windows_cores,
}
