"""The number of decoding threads: one for each fast core, fewer for replies that begin under contention."""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from localspec.display import counted
from localspec.options import MOST_THREADS

# Models with fewer bytes of weights decode faster on one core than on two.
SMALL_BYTES = 32_000_000
_FAST = 0.75  # a fast core has at least this share of the largest cpu_capacity; Arm's little cores have half


def default_threads() -> int:
    """Return the number of fast physical cores, because ggml is slower with two threads on one core."""
    known = {"linux": _linux_cores, "darwin": _macos_cores, "win32": _windows_cores}
    return min(max(1, known.get(sys.platform, os.cpu_count)() or os.cpu_count() or 1), MOST_THREADS)


def usable_cores() -> int:
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(allowed, _cgroup_cores() or allowed)


def clock_of_others() -> Callable[[], float] | None:
    """Return a clock of the processor time of other programs; None if the system does not report it for these cores."""
    cores = usable_cores()
    with suppress(OSError, ValueError):
        if cores == os.cpu_count() and idle_seconds():
            return lambda: cores * perf_counter() - idle_seconds() - process_time()
    return None


def idle_seconds() -> float:
    """Return the idle time of all cores together; only differences of two results have a meaning."""
    if sys.platform == "win32":
        idle = ctypes.c_uint64(0)
        ctypes.windll.kernel32.GetSystemTimes(ctypes.byref(idle), None, None)
        return idle.value / 1e7
    if sys.platform == "darwin":
        library, ticks, size = ctypes.CDLL(None), (ctypes.c_uint32 * 4)(), ctypes.c_uint32(4)
        library.host_statistics(library.mach_host_self(), 3, ticks, ctypes.byref(size))  # HOST_CPU_LOAD_INFO
        return ticks[2] / 100.0
    with open("/proc/stat") as file:  # the fourth number is idle time; the fifth, time of waiting for a disk
        return sum(map(int, file.readline().split()[4:6])) / os.sysconf("SC_CLK_TCK")


def _linux_cores() -> int:
    devices = Path("/sys/devices")
    usable = fast_cpus(os.sched_getaffinity(0), devices)
    try:
        siblings = (devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in usable)
        count = len({path.read_text() for path in siblings})
    except OSError:
        count = len(usable)
    return min(count, _cgroup_cores() or count)


def fast_cpus(cpus: Set[int], devices: Path) -> Set[int]:
    try:
        fast = cpus & _cpu_list((devices / "cpu_core/cpus").read_text())  # the fast cores of a hybrid Intel
    except (OSError, ValueError):
        fast = cpus
    try:
        files = {cpu: devices / f"system/cpu/cpu{cpu}/cpu_capacity" for cpu in fast}
        capacities = {cpu: int(path.read_text()) for cpu, path in files.items()}
    except (OSError, ValueError):
        return fast or cpus
    return {cpu for cpu in fast if capacities[cpu] >= _FAST * max(capacities.values())} or cpus


def _cpu_list(text: str) -> set[int]:
    ranges = (part.partition("-") for part in text.strip().split(","))
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}


def _cgroup_cores() -> int | None:
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
    call = getattr(ctypes, "windll").kernel32.GetLogicalProcessorInformationEx  # noqa: B009  Windows only
    size = ctypes.c_uint32(0)
    call(0, None, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    if not size.value or not call(0, buffer, ctypes.byref(size)):
        return None
    return count_fastest(buffer.raw[: size.value])


def count_fastest(entries: bytes) -> int:
    """Return the number of fastest cores; `entries`: Windows's SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX."""
    classes: list[int] = []
    offset = 0
    while offset < len(entries):
        classes.append(entries[offset + 9])
        offset += int.from_bytes(entries[offset + 4 : offset + 8], "little")
    return classes.count(max(classes))


# In CPU contention, a pass's threads get less than this share of processor time, and other programs use this share of a
# core. One sign is too little: threads may wait for a disk, and the clock of a running thread makes steps of some ms.
CONTENDED, OTHERS = 0.75, 0.5
JUDGED_PASSES, JUDGED_SECONDS = 3, 0.25  # contention is judged over this many passes or seconds
# Contention is judged over at least this many seconds, because a pass may take less than an interruption, and because
# Windows counts processor time in steps of 16 ms.
LEAST_SECONDS = 0.1 if sys.platform == "win32" else 0.05
WIDEST_DRAFT = 64  # maximum tokens of a verify batch; a wider pass counts as prefill
SWITCHED = 1000.0  # involuntary context switches a second, above which programs compete for a core
# The wait before all threads are tried again: at least 1 s, and at least 40 times the duration of the last try.
WAIT_SECONDS, WAIT_FACTOR = 1.0, 40.0
COMPARED = 3  # number of passes with fewer threads that are compared with passes of all threads
USELESS_SECONDS = 60.0  # the wait before fewer threads are tried again, after they were slower


@dataclass(slots=True)
class Contention:
    """The number of threads for all contexts of a pair, chosen from the processor time that passes get.

    In a pass over one token, the number of threads can change the last bits of a row. So a reply's first pass of this
    kind fixes the number until no reply runs. While passes have more threads than get a core, `spin_less` is called.
    """

    cores: int  # number of cores that the process may use
    fixed: bool = False  # whether the user chose the number of threads
    spin_less: Callable[[float], object] = abs  # lets waiting threads sleep sooner for the given seconds
    switches: Callable[[], int] = int  # returns the number of this process's involuntary context switches
    others: Callable[[], float] | None = None  # the result of `clock_of_others`
    clock: Callable[[], float] = perf_counter
    limit: int | None = None  # maximum threads under CPU contention; None: no contention
    usual: int = 1  # maximum threads of any context without CPU contention
    kept: int | None = None  # the `limit` in use; running replies keep it when `limit` changes
    _reported: int | None = None  # number of threads at the last call of `settle`; None before the first
    _replies: int = 0  # number of running replies
    _settled: bool = False  # whether running replies have fixed `kept`
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)  # held to change the fields
    # (threads, tokens, seconds, share of its threads' processor time) of each pass
    _judged: list[tuple[int, int, float, float]] = field(default_factory=list)
    _among_pairs: bool = False  # whether other pairs made passes beside the judged ones
    _switched: int = 0  # `switches()` before the judged passes
    _began: tuple[float, float] = 0.0, 0.0  # `clock()` and `others()` before the judged passes
    _before: dict[int, float] = field(default_factory=dict)  # by number of tokens: seconds with all threads
    _ratios: list[float] = field(default_factory=list)  # seconds of passes with fewer threads / `_before`
    _deaf_until: float = -math.inf  # passes before this clock time are not judged

    @property
    def contended(self) -> bool:
        return self.limit is not None

    @contextmanager
    def reply(self) -> Iterator[None]:
        with self.lock:
            self._replies += 1
            if self._replies == 1:
                self._judge()
                self._forget_passes()  # older passes do not show the present contention
        try:
            yield
        finally:
            with self.lock:
                self._replies -= 1
                self._settled = self._settled and self._replies > 0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the present number of threads for replies that are compared with each other."""
        with self.reply():
            with self.lock:
                self._settle()
            yield

    def settle(self) -> str:
        """Fix the number of threads until no reply runs; return a notice if an earlier reply had another, else ""."""
        with self.lock:
            self._settle()
            before, self._reported = self._reported, min(self.usual, self.kept or self.usual)
            return "" if before in (None, self._reported) else _notice(before, self._reported)

    def threads(self, usual: int, width: int, reading: int) -> int:
        """Return the threads for a pass: `usual` to decode, `reading` to prefill, or fewer under contention."""
        with self.lock:
            if len(self._judged) >= JUDGED_PASSES or self._spent >= JUDGED_SECONDS:
                self._judge()
            if width == 1:
                self._settle()
            chosen = self._chosen(usual, width, reading)
            if self.others and not self._judged and chosen > (self.limit or 1):
                self._began = self.clock(), self.others()
            return chosen

    def _chosen(self, usual: int, width: int, reading: int) -> int:
        if not (self._settled or self.fixed):
            self.kept = self.limit
            if self.clock() >= self._deaf_until:  # try all threads again after the wait
                return reading if self._replies or width > WIDEST_DRAFT else usual
        if width > WIDEST_DRAFT:  # rows of wide passes do not depend on the number of threads
            return min(reading, (not self.fixed and self.limit) or reading)
        return min(usual, self.kept or usual)

    def learn(
        self, threads: int, width: int, seconds: float, processor_seconds: float, among_pairs: bool = False
    ) -> None:
        """Learn from a pass. `among_pairs`: whether another pair of this process made a pass at the same time."""
        with self.lock:
            self._among_pairs |= among_pairs
            if threads <= max(self.kept or 1, self.limit or 1):
                self._compare(width, seconds)
            elif self.clock() >= self._deaf_until:
                share = processor_seconds / max(threads * seconds, 1e-9)
                self._judged.append((threads, width, seconds, share))

    @property
    def _spent(self) -> float:
        return sum(seconds for _, _, seconds, _ in self._judged)

    def _settle(self) -> None:
        if self._replies and not self._settled:
            self._judge()
            self._settled, self.kept = True, None if self.fixed else self.limit

    def _judge(self) -> None:
        if self._spent < LEAST_SECONDS:
            return
        threads = self._judged[-1][0]
        share = max(median(share for *_, share in self._judged), 0.01)  # one pass may have been interrupted
        before = {width: seconds for _, width, seconds, _ in self._judged}
        tried = sum(seconds * share for *_, seconds, share in self._judged)
        often = self.switches() - self._switched > SWITCHED * self._spent
        among_pairs, (began, used) = self._among_pairs, self._began
        self._lift()
        is_used = not self.others or self.others() - used > OTHERS * (self.clock() - began)
        if share < CONTENDED and (among_pairs or is_used):
            others = self.cores / share - threads  # other programs' threads, if all get equal shares
            self.limit = min(max(round(self.cores - others), 1), threads - 1)
            self._before = before
            wait = max(WAIT_SECONDS, WAIT_FACTOR * tried)
            self._deaf_until = self.clock() + wait
            if often and (self.fixed or self._settled):  # the next passes have too many threads, too
                self.spin_less(0.9 * wait)  # the threads wait as usual again before passes are judged

    def _compare(self, width: int, seconds: float) -> None:
        if self.limit is not None and width in self._before and len(self._ratios) < COMPARED:
            self._ratios.append(seconds / self._before[width])
            if len(self._ratios) == COMPARED and median(self._ratios) > 1.0:
                self._lift()
                self._deaf_until = self.clock() + USELESS_SECONDS

    def _lift(self) -> None:
        self.limit = None
        self._forget_passes()
        self._ratios.clear()

    def _forget_passes(self) -> None:
        self._judged.clear()
        self._among_pairs = False
        self._switched = self.switches()


def _notice(before: int, now: int) -> str:
    return (
        f"from this reply on, {counted(now, 'thread')} decode{'s' * (now == 1)} instead of {before}, because other "
        f"programs {'use' if now < before else 'no longer use'} the processor. This can change a word of the reply. "
        f"To keep {before}, set --threads {before}"
    )


_running: list[int] = []  # the threads of each pass that this process makes now


@contextmanager
def beside(threads: int) -> Iterator[Sequence[int]]:
    """Count a pass's threads as running; yield a list: all running threads at its begin, and later at its end."""
    _running.append(threads)
    counts = [sum(_running)]
    try:
        yield counts
    finally:
        counts.append(sum(_running))
        _running.remove(threads)


class Threads:
    """The number of threads of one context. After `yield_threads`, this is smaller under CPU contention."""

    def __init__(self, usual: int) -> None:
        self.usual = self.reading = usual  # `usual`: for decoding; `reading`: for prefill
        self.contention: Contention | None = None

    @property
    def now(self) -> int:
        kept = self.contention and self.contention.kept
        return min(self.usual, kept or self.usual)

    def wanted(self, width: int) -> int:  # the number of threads for a pass of `width` tokens
        if self.contention:
            return self.contention.threads(self.usual, width, self.reading)
        return self.reading if width > WIDEST_DRAFT else self.usual


def yield_threads(
    contexts: Iterable[Threads],
    lock: AbstractContextManager[object],
    *,
    fixed: bool,
    spin_less: Callable[[float], object],
    switches: Callable[[], int],
) -> Contention:
    """Let these contexts give way under CPU contention; return their common Contention, which has the lock."""
    several = [threads for threads in contexts if threads.reading > 1]
    usual = max((threads.usual for threads in several), default=1)
    others = clock_of_others()
    contention = Contention(usable_cores(), fixed, spin_less, switches, others, usual=usual, lock=lock)
    for threads in several:
        threads.contention = contention
    return contention
