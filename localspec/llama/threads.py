"""How many threads decode: the fast cores, and fewer while other programs use them."""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

from localspec.errors import BadSetting

MOST_THREADS = 512  # GGML_MAX_N_THREADS; beyond it ggml writes past its tables
_FAST = 0.75  # of the largest capacity that Linux gives a core: Arm's big ones have it, its little ones half


def thread_count(wanted: int | None) -> int:
    """The requested threads, or the physical cores. Raises BadSetting for more than ggml can run."""
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
    """The processor threads that this process may use, with hyperthreads, within a container's quota."""
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
    """The performance cores if Linux knows several kinds; else all cores."""
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
    """The fast cores; empty without slow ones."""
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


CROWDED = 0.75  # of the time of its threads: a pass with less shared its cores
JUDGED_PASSES, JUDGED_SECONDS = 3, 0.25  # with all threads, whichever comes first
# Windows counts processor time in steps of 16 ms.
LEAST_SECONDS = 0.1 if sys.platform == "win32" else 0.0
NARROW = 8  # tokens: no wider pass is a try
# Until the next try; or times the processor time of the last one, which a process that was stopped did not get.
WAIT_SECONDS, WAIT_FACTOR = 1.0, 40.0
COMPARED = 3  # passes after which fewer threads have to be the faster ones
USELESS_SECONDS = 60.0  # without another attempt, where they were not


@dataclass(slots=True)
class Contention:
    """How many threads the next pass should use, judged by the passes of all contexts of a pair."""

    cores: int  # that the process may use
    clock: Callable[[], float] = perf_counter
    limit: int | None = None  # threads, while the cores are busy
    _judged: list[tuple[int, float]] = field(default_factory=list)  # width and seconds, with all threads
    _usable: float = 0.0  # processor seconds in those
    _given: float = 0.0  # of them
    _before: dict[int, float] = field(default_factory=dict)  # seconds by width, when the limit was set
    _ratios: list[float] = field(default_factory=list)  # seconds within the limit / before
    _deaf_until: float = -math.inf  # no try and no judgement

    def threads(self, usual: int, width: int) -> int:
        """Threads for a pass over `width` tokens, in a context that uses `usual` ones on idle cores."""
        if self.limit is None or (width <= NARROW and self.clock() >= self._deaf_until):
            return usual
        return min(usual, self.limit)

    def learn(self, threads: int, width: int, seconds: float, processor_seconds: float) -> None:
        """Record a pass, its number of threads and the processor time that they got."""
        if self.limit is not None and threads <= self.limit:
            self._compare(width, seconds)
        elif self.clock() >= self._deaf_until:
            self._judged.append((width, seconds))
            self._usable += threads * seconds
            self._given += processor_seconds
            spent = sum(seconds for _, seconds in self._judged)
            if spent >= LEAST_SECONDS and (len(self._judged) >= JUDGED_PASSES or spent >= JUDGED_SECONDS):
                self._judge(threads)

    def _judge(self, threads: int) -> None:
        share = max(self._given / max(self._usable, 1e-9), 0.01)
        before, tried = dict(self._judged), self._given / threads
        self._lift()
        if share < CROWDED:
            others = self.cores / share - threads  # where all that run share the cores equally
            self.limit = min(max(round(self.cores - others), 1), threads - 1)
            self._before = before
            self._deaf_until = self.clock() + max(WAIT_SECONDS, WAIT_FACTOR * tried)

    def _compare(self, width: int, seconds: float) -> None:
        if width in self._before and len(self._ratios) < COMPARED:
            self._ratios.append(seconds / self._before[width])
            if len(self._ratios) == COMPARED and median(self._ratios) > 1.0:
                self._lift()
                self._deaf_until = self.clock() + USELESS_SECONDS

    def _lift(self) -> None:
        self.limit = None
        self._usable = self._given = 0.0
        self._judged.clear()
        self._ratios.clear()


class Threads:
    """The threads of one context: the usual number, or fewer after `give_way`."""

    def __init__(self, usual: int) -> None:
        self.usual = usual
        self.now = usual  # in the latest pass
        self.fixed = False  # as many in every pass: their number can change the last bits of a row
        self.contention: Contention | None = None

    @property
    def crowded(self) -> bool:
        """Whether other programs keep the cores busy."""
        return self.contention is not None and self.contention.limit is not None

    def wanted(self, width: int) -> int:
        """How many a pass over `width` tokens uses."""
        self.now = self.usual
        if self.contention and not self.fixed:
            self.now = self.contention.threads(self.usual, width)
        return self.now

    def learn(self, width: int, seconds: float, processor_seconds: float) -> None:
        """Record the time of the pass."""
        if self.contention:
            self.contention.learn(self.now, width, seconds, processor_seconds)


def give_way(contexts: Iterable[Threads]) -> None:
    """Use fewer threads while other programs keep the cores busy; all contexts share the observations."""
    contention = Contention(usable_cores())
    for threads in contexts:
        threads.contention = contention if threads.usual > 1 else None
