"""How many threads decoding should use: the fast physical cores that this process may run on.

A slow core of a hybrid processor holds the others up, because every thread gets an equal share.
"""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Set
from pathlib import Path

from localspec.errors import BadSetting

MOST_THREADS = 512  # GGML_MAX_N_THREADS; beyond it ggml writes past its tables
_FAST = 0.75  # of the largest capacity that Linux gives a core: Arm's big ones have it, its little ones half


def thread_count(wanted: int | None) -> int:
    """What was asked for, or the physical cores. Raises BadSetting beyond what ggml can run."""
    if wanted is not None and not 1 <= wanted <= MOST_THREADS:
        raise BadSetting(
            f"llama.cpp cannot run {wanted:,} threads",
            hint=f"use 1 to {MOST_THREADS}; the physical cores are the default",
        )
    return wanted or min(default_threads(), MOST_THREADS)


def default_threads() -> int:
    """Fast physical cores, at least 1: two threads on one core slow ggml down, as sharing it with others does."""
    count = _CORES.get(sys.platform, os.cpu_count)()
    return max(1, count or os.cpu_count() or 1)


def usable_cores() -> int:
    """What this process and others share, hyperthreads counted apart and a container's quota heeded."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(allowed, _cgroup_cores() or allowed)


def _linux_cores() -> int:
    """Fast cores that this process may run on, without their hyperthreads and within a container's quota."""
    devices = Path("/sys/devices")
    usable = fast_cpus(os.sched_getaffinity(0), devices)
    try:
        siblings = (devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in usable)
        count = len({path.read_text() for path in siblings})
    except OSError:
        count = len(usable)
    return min(count, _cgroup_cores() or count)


def fast_cpus(cpus: Set[int], devices: Path) -> Set[int]:
    """Those of the performance cores, where Linux knows more than one kind; all of them where it does not."""
    try:
        fast = cpus & _cpu_list((devices / "cpu_core/cpus").read_text())  # Intel's
    except (OSError, ValueError):
        fast = cpus
    try:
        files = {cpu: devices / f"system/cpu/cpu{cpu}/cpu_capacity" for cpu in fast}
        capacities = {cpu: int(path.read_text()) for cpu, path in files.items()}
    except (OSError, ValueError):
        return fast or cpus
    return {cpu for cpu in fast if capacities[cpu] >= _FAST * max(capacities.values())} or cpus


def _cpu_list(text: str) -> set[int]:
    """The numbers in a list like 0-15,20."""
    ranges = (part.partition("-") for part in text.strip().split(","))
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}


def _cgroup_cores() -> int | None:
    """Whole cores that a container's CPU quota amounts to; None without a quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return None


def _macos_cores() -> int | None:
    """The fast cores, where there are slow ones."""
    library = ctypes.CDLL(None)
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
        value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
        if library.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return value.value
    return None


def _windows_cores() -> int | None:
    call = getattr(ctypes, "windll").kernel32.GetLogicalProcessorInformationEx  # noqa: B009  Windows only
    size = ctypes.c_uint32(0)
    call(0, None, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    if not size.value or not call(0, buffer, ctypes.byref(size)):
        return None
    return count_fastest(buffer.raw[: size.value])


def count_fastest(entries: bytes) -> int:
    """The cores of the highest EfficiencyClass in the answer to RelationProcessorCore: one entry for each core.

    An entry is SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX: relationship, its own size, flags, the class.
    """
    classes: list[int] = []
    offset = 0
    while offset < len(entries):
        classes.append(entries[offset + 9])
        offset += int.from_bytes(entries[offset + 4 : offset + 8], "little")
    return classes.count(max(classes))


_CORES: dict[str, Callable[[], int | None]] = {
    "linux": _linux_cores,
    "darwin": _macos_cores,
    "win32": _windows_cores,
}
