"""Devices of llama.cpp, those of its last answer, and the free memory of this machine."""

import contextlib
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec import options
from localspec.files import recalled, remember


def available_bytes() -> int | None:
    """Memory that can be had without swapping; file caches count, because they give way. None: unknown."""
    if sys.platform == "win32":
        return _windows()
    if sys.platform == "darwin":
        return _macos()
    machine = _linux_machine(Path("/proc/meminfo"))
    group = _linux_group(Path("/sys/fs/cgroup"))
    return machine if group is None else min(machine, group)


def _linux_machine(meminfo: Path) -> int:
    with contextlib.suppress(OSError):
        if found := re.search(r"^MemAvailable: +(\d+) kB", meminfo.read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _linux_group(folder: Path) -> int | None:
    """Free memory within a container's limit; None without a limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        statistics = (folder / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if not limit.isdecimal():
        return None
    found = re.search(r"^inactive_file (\d+)", statistics, re.MULTILINE)
    return max(0, int(limit) - used + (int(found[1]) if found else 0))


def _macos() -> int | None:
    """Free and purgeable pages, and those that give way: inactive ones, or those that hold files if these are more."""
    try:
        text = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    page = re.search(r"page size of (\d+) bytes", text)
    found = re.findall(r"^(?:Pages )?([a-z-]+)(?: pages)?: +(\d+)\.", text, re.MULTILINE | re.IGNORECASE)
    pages = {name.lower(): int(count) for name, count in found}
    if "free" not in pages:
        return None
    unused = pages.get("inactive", 0) + pages.get("speculative", 0)
    # A model that was just used is file-backed and active; it gives way as well.
    spare = pages["free"] + pages.get("purgeable", 0) + max(unused, pages.get("file-backed", 0))
    return spare * (int(page[1]) if page else 4096)


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total_physical", ctypes.c_uint64),
        ("available_physical", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    )


def _windows() -> int | None:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  mypy knows it on Windows only
    return int(status.available_physical) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None


DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]


@dataclass(frozen=True, slots=True)
class Device:
    """A device of llama.cpp, and the memory on it."""

    name: str  # as llama.cpp calls it: "CUDA0", "Metal", "CPU"
    kind: DeviceKind
    free_bytes: int  # as the driver reports it now; on unified memory an estimate
    total_bytes: int
    shares_memory: bool = False  # its memory is the CPU's
    description: str = ""
    backend: str = ""

    @property
    def is_gpu(self) -> bool:
        return self.kind in ("gpu", "igpu")

    @property
    def remote(self) -> str:
        """The name of another machine's device in sentences; "" for a device of this machine."""
        return f"{self.name} ({self.description})" if self.backend == "RPC" else ""


def last_devices() -> tuple[Device, ...]:
    """The devices from llama.cpp's last answer, as free as they were at best; without one only the CPU."""
    known = recalled(_devices_file(), tuple[Device, ...])
    return with_host(known or (Device("CPU", "cpu", 0, 0),))


def remember_devices(listed: Sequence[Device]) -> None:
    """With the most memory that was ever free on each GPU: another program may hold some of it now."""
    known = recalled(_devices_file(), tuple[Device, ...]) or ()
    most = {replace(device, free_bytes=0): device.free_bytes for device in known if device.is_gpu}
    free = (max(device.free_bytes, most.get(replace(device, free_bytes=0), 0)) for device in listed)
    remember(
        _devices_file(), [replace(device, free_bytes=size) for device, size in zip(listed, free, strict=True)]
    )


def with_host(listed: Sequence[Device]) -> tuple[Device, ...]:
    """The same devices, with the system's available memory as the free memory of the CPU and of devices that share it.

    ggml reports all of a machine's memory as free, and Metal all that other programs may have taken; that stays where
    the system does not tell.
    """
    free = available_bytes()
    if free is None:
        return tuple(listed)
    return tuple(
        replace(device, free_bytes=free, total_bytes=max(device.total_bytes, free))
        if device.kind == "cpu"
        else replace(device, free_bytes=min(device.free_bytes, free))
        if device.shares_memory
        else device
        for device in listed
    )


def _devices_file() -> Path:
    return options.cache_dir() / "devices.json"
