"""The devices of this machine and their memory, as llama.cpp listed them last."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from localspec import settings
from localspec.files import loads_as, write_text_atomically
from localspec.memory.host_memory import available_bytes


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device and the memory on it."""

    name: str
    kind: str  # cpu, gpu, igpu, accel
    free: int  # bytes
    total: int
    shared: bool = False  # its memory is the CPU's

    @property
    def is_gpu(self) -> bool:
        return self.kind in ("gpu", "igpu")


def last_devices() -> tuple[DeviceMemory, ...]:
    """The devices as they were when llama.cpp was last asked; only the CPU where it never was."""
    try:
        return with_host(loads_as(tuple[DeviceMemory, ...], _devices_file().read_text("utf-8")))
    except (OSError, ValueError):
        return with_host((DeviceMemory("CPU", "cpu", 0, 0),))


def remember_devices(listed: tuple[DeviceMemory, ...]) -> None:
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_text_atomically(_devices_file(), json.dumps([asdict(device) for device in listed]))


def with_host(listed: tuple[DeviceMemory, ...]) -> tuple[DeviceMemory, ...]:
    """The same devices, with what the system can still give away as the free memory of the CPU, and of what shares it.

    ggml reports all of a machine's memory as free, and Metal all that other programs may have taken; that stays where
    the system does not tell.
    """
    free = available_bytes()
    if free is None:
        return listed
    return tuple(
        replace(device, free=free, total=max(device.total, free))
        if device.kind == "cpu"
        else replace(device, free=min(device.free, free))
        if device.shared
        else device
        for device in listed
    )


def _devices_file() -> Path:
    return settings.cache_dir() / "devices.json"
