"""How many threads decoding should use: the physical cores that this process may run on."""

import ctypes
import math
import os
import sys
from pathlib import Path


def default_threads() -> int:
    """Physical cores, at least 1: two threads on one core slow ggml down, as sharing it with others does."""
    logical = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    physical = _physical_cores() or logical
    return max(1, min(physical, logical))


def _physical_cores() -> int | None:
    """Cores without their hyperthreads (on macOS only the fast ones); None where the system does not tell."""
    if sys.platform == "linux":
        return _linux_cores()
    if sys.platform == "darwin":
        return _macos_cores()
    if sys.platform == "win32":
        return _windows_cores()
    return None


def _linux_cores() -> int | None:
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        try:
            siblings.add(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            return _cgroup_cores()
    quota = _cgroup_cores()
    return min(len(siblings), quota) if quota else len(siblings)


def _cgroup_cores() -> int | None:
    """Whole cores that a container's CPU quota amounts to; None without a quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return None


def _macos_cores() -> int | None:
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
