"""The memory plan for files on this machine."""

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.models.devices import DeviceMemory
from localspec.models.facts import header_at
from localspec.models.header import Header
from localspec.models.memory import MemoryWishes, Plan, plan
from localspec.models.probe import Probe
from localspec.models.units import size_text


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
    with Probe(devices) as probe:
        draft_header = header_at(draft) if draft else None
        return plan(header_at(target), draft_header, probe.devices(), wishes, probe.needs)


def outlook(target: Header, draft: Header | None) -> tuple[str, ...]:
    """How a pair would run on this machine, in sentences; also where it would not."""
    try:
        with Probe() as probe:
            found = plan(target, draft, probe.devices(), MemoryWishes(), probe.needs)
    except LocalspecError as error:
        return (f"It would not run here: {error}.",)
    needs = " and ".join(
        f"{size_text(need.total)} of {size_text(need.free)} on {need.device}" for need in found.needs
    )
    return (f"With {found.context_length:,} tokens of context it takes {needs}.", *found.lines)
