"""What the user asked of the memory plan."""

import math
from dataclasses import dataclass

from localspec.errors import BadSetting
from localspec.settings import Settings


@dataclass(frozen=True, slots=True)
class MemoryWishes:
    """What the user asked for; None or nothing: the plan decides."""

    context: int | None = None  # tokens
    gpu_layers: int | None = None
    kv_type: str = "f16"  # of the target
    devices: tuple[str, ...] = ()  # of the target
    split: tuple[float, ...] = ()  # shares of the GPUs in the target's layers
    cpu_moe: int | None = None
    flash_attn: str = "auto"
    no_flash: tuple[str, ...] = ()  # devices whose driver dies of it
    draft_device: str | None = None
    draft: bool = True
    target_rows: int = 33  # of logits in one decode; compute buffers grow with it
    draft_rows: int = 1
    ignore_memory: bool = False  # load although it does not fit
    snapshots: int = 3  # of a recurrent target, so the most draft tokens: each is a whole state


def wishes_of(settings: Settings, draft: bool = True) -> MemoryWishes:
    """The settings that the plan heeds. Raises BadSetting for numbers that cannot be."""
    check_at_least("context_length", settings.context, 16)
    check_at_least("gpu_layers", settings.gpu_layers, 0)
    check_at_least("cpu_moe", settings.cpu_moe, 0)
    return MemoryWishes(
        context=settings.context,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv_type or "f16",
        devices=tuple(filter(None, map(str.strip, (settings.device or "").split(",")))),
        split=_shares(settings.split or ""),
        cpu_moe=settings.cpu_moe,
        flash_attn=settings.flash_attn or "auto",
        draft_device=settings.draft_device or None,
        draft=draft,
        ignore_memory=bool(settings.ignore_memory),
    )


def check_at_least(name: str, value: int | None, least: int) -> None:
    """Raises BadSetting for a number below the least; None was not given."""
    if value is not None and value < least:
        raise BadSetting(f"{name} is {value}", hint=f"give a whole number of at least {least}")


def _shares(text: str) -> tuple[float, ...]:
    """The numbers of a text like 3,1."""
    if not text.strip():
        return ()
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if not any(found) or not all(math.isfinite(share) and share >= 0 for share in found):
        raise BadSetting(f"{text} is no split over GPUs", hint="give a share for each, as in --split 3,1")
    return found
