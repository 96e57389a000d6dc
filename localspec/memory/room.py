"""What every device has room for."""

from collections.abc import Sequence

from localspec.errors import NotEnoughMemory
from localspec.memory.known_devices import DeviceMemory
from localspec.memory.needs import Needs
from localspec.units import size_text

_MARGIN = 0.03  # of a device's memory: drivers, fragmentation, the program itself
_LEAST_MARGIN = 200_000_000  # bytes
_LEAST_GPU_MARGIN = 512_000_000  # kernels, workspaces and pools; llama.cpp aborts where they do not fit


class Room:
    """The memory of all devices, less a margin; what shares the CPU's memory is counted with the CPU's."""

    def __init__(self, devices: Sequence[DeviceMemory]) -> None:
        self._devices = {device.name: device for device in devices}
        self._cpu = next((device.name for device in devices if device.kind == "cpu"), "")

    def spare(self, name: str, needs: Sequence[Needs]) -> int:
        """Bytes that are left on a device; negative where it is too small."""
        device = self._devices.get(name)
        if device is None:
            return -_on((name,), needs)
        left = _usable(device) - _on((name,), needs)
        if not device.shared and name != self._cpu:
            return left
        return min(left, _usable(self._devices[self._cpu]) - _on(self.of_cpu, needs))

    def holds(self, needs: Sequence[Needs]) -> bool:
        return all(self.spare(name, needs) >= 0 for need in needs for name in need.by_device)

    @property
    def of_cpu(self) -> tuple[str, ...]:
        """The devices that compute in the CPU's memory."""
        return tuple(d.name for d in self._devices.values() if d.shared or d.name == self._cpu)

    def spare_on_cpu(self, needs: Sequence[Needs]) -> int:
        """Bytes that are left of the CPU's memory."""
        return self.spare(self._cpu, needs)

    def cpu_holds(self, needs: Sequence[Needs]) -> bool:
        return self.spare_on_cpu(needs) >= 0

    def too_small_for(self, needs: Sequence[Needs]) -> NotEnoughMemory:
        """The error that names the device that lacks most."""
        names = dict.fromkeys(name for need in needs for name in need.by_device)
        worst = min(names, key=lambda name: self.spare(name, needs))
        free = self._devices[worst].free if worst in self._devices else 0
        return NotEnoughMemory(
            f"the target alone needs {size_text(_on((worst,), needs))} on {worst}, "
            f"and {size_text(free)} are free",
            hint="choose a smaller pair or quantisation, or a shorter context (--context), "
            "or load it anyway (--ignore-memory)",
        )


def _usable(device: DeviceMemory) -> int:
    least = _LEAST_GPU_MARGIN if device.is_gpu and not device.shared else _LEAST_MARGIN
    return device.free - max(least, int(device.total * _MARGIN))


def _on(names: Sequence[str], needs: Sequence[Needs]) -> int:
    return sum(need.by_device.get(name, 0) for need in needs for name in names)
