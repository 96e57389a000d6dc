"""The memory plan for files on this machine."""

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.adapters import Adapter
from localspec.gguf.header import Header, header_at
from localspec.memory.known_devices import DeviceMemory
from localspec.memory.plan import Plan, plan
from localspec.memory.probe import Probe
from localspec.memory.wishes import MemoryWishes
from localspec.units import size_text


def plan_for_files(
    target: Path,
    draft: Path | None,
    wishes: MemoryWishes,
    devices: Sequence[DeviceMemory] | None = None,
    lora: Sequence[Adapter] = (),
) -> Plan:
    """How to load two files here; llama.cpp is asked unless the answer is remembered.

    devices: as llama.cpp lists them now; None asks for them as well.
    Raises NotEnoughMemory, BadSetting, BadModelFile.
    """
    with Probe(devices) as probe:
        beside = probe.draft_sizes(header_at(target), header_at(draft) if draft else None)
        changed = probe.sizes(header_at(target), [header_at(path) for path, _ in lora])
        return plan(changed, beside, probe.devices(), wishes)


def outlook(target: Header, draft: Header | None) -> tuple[str, ...]:
    """How a pair would run on this machine, in sentences; also where it would not."""
    try:
        with Probe() as probe:
            beside = probe.draft_sizes(target, draft)
            found = plan(probe.sizes(target), beside, probe.devices(), MemoryWishes())
    except LocalspecError as error:
        return (f"It would not run here: {error}.",)
    needs = " and ".join(
        f"{size_text(need.total)} of {size_text(need.free)} on {need.device}" for need in found.needs
    )
    return (f"With {found.target.length:,} tokens of context it takes {needs}.", *found.lines)
