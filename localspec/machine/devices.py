"""The devices that llama.cpp reports, the free memory of this machine, and whether it runs on its battery."""

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

_SUPPLIES = Path("/sys/class/power_supply")


def available_bytes() -> int | None:
    """Return the bytes of memory available without swapping, file caches included; None if unknown."""
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
    """Return the bytes that the cgroup in `folder` may still use; None without a limit."""
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
    """Return the bytes of free and purgeable pages, plus the larger of inactive and file-backed pages."""
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
    # File-backed pages count even if they are active: those of a model that was just used can be reclaimed.
    spare = pages["free"] + pages.get("purgeable", 0) + max(unused, pages.get("file-backed", 0))
    return spare * (int(page[1]) if page else 4096)


class _MemoryStatus(ctypes.Structure):
    """The structure MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total_physical", ctypes.c_uint64),
        ("available_physical", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    )


def _windows() -> int | None:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  mypy knows `windll` on Windows only
    return int(status.available_physical) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None


DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]


@dataclass(frozen=True, slots=True)
class Device:
    name: str  # llama.cpp's name: "CUDA0", "Metal", "CPU"
    kind: DeviceKind
    free_bytes: int  # free memory as the driver reports it; an estimate for unified memory
    total_bytes: int
    shares_memory: bool = False  # whether the CPU uses the same memory (unified memory)
    description: str = ""
    backend: str = ""

    @property
    def is_gpu(self) -> bool:
        return self.kind in ("gpu", "igpu")

    @property
    def remote(self) -> str:
        """The name of a device on another machine, for messages; "" for a device of this machine."""
        return f"{self.name} ({self.description})" if self.backend == "RPC" else ""


def last_devices() -> tuple[Device, ...]:
    """Return the devices that `remember_devices` stored last, or only the CPU if nothing is stored."""
    known = recalled(options.cache_dir() / "devices.json", tuple[Device, ...])
    return with_host(known or (Device("CPU", "cpu", 0, 0),))


def remember_devices(listed: Sequence[Device]) -> None:
    """Store the devices, each GPU with its largest free memory so far, because other programs may use some now."""
    known = recalled(file := options.cache_dir() / "devices.json", tuple[Device, ...]) or ()
    most = {replace(device, free_bytes=0): device.free_bytes for device in known if device.is_gpu}
    free = (max(device.free_bytes, most.get(replace(device, free_bytes=0), 0)) for device in listed)
    remember(file, [replace(device, free_bytes=size) for device, size in zip(listed, free, strict=True)])


def with_host(listed: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices with corrected free memory: at most `available_bytes` if they use the CPU's memory.

    ggml reports too much: it counts all memory of a machine as free, and Metal ignores other programs.
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


def on_battery() -> bool:
    """Return whether the machine runs on its battery; False if the system reports nothing about it."""
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        if sys.platform == "win32":
            status = (ctypes.c_ubyte * 12)()  # SYSTEM_POWER_STATUS: its first byte is 0 on battery
            return bool(ctypes.windll.kernel32.GetSystemPowerStatus(status)) and status[0] == 0
        if sys.platform == "darwin":
            pmset = subprocess.run(["pmset", "-g", "batt"], capture_output=True, text=True, timeout=5)
            return "'Battery Power'" in pmset.stdout
        texts = [set((folder / "uevent").read_text().splitlines()) for folder in _SUPPLIES.iterdir()]
        mains = any("POWER_SUPPLY_ONLINE=1" in text for text in texts)
        empties = {"POWER_SUPPLY_TYPE=Battery", "POWER_SUPPLY_STATUS=Discharging"}
        # Skip batteries of the scope "Device": they belong to a mouse or a keyboard.
        return not mains and any(empties <= t and "POWER_SUPPLY_SCOPE=Device" not in t for t in texts)
    return False
