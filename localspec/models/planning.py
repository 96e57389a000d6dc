"""The memory plan for files on this machine."""

from collections.abc import Sequence
from pathlib import Path

from localspec.models.devices import DeviceMemory, with_host
from localspec.models.facts import header_at
from localspec.models.memory import MemoryWishes, Plan, plan
from localspec.models.probe import Probe


def plan_for_files(
    target: Path,
    draft: Path | None,
    wishes: MemoryWishes,
    devices: Sequence[DeviceMemory] | None = None,
) -> Plan:
    """How to load two files here; llama.cpp is asked in a child process unless the answer is remembered.

    devices: as llama.cpp lists them now; None asks for them in the child as well.
    Raises NotEnoughMemory, BadSetting, BadModelFile.
    """
    with Probe() as probe:
        here = probe.devices() if devices is None else with_host(tuple(devices))
        return plan(header_at(target), header_at(draft) if draft else None, here, wishes, probe.needs)
