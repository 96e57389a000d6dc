"""The choice of attention on a CPU: flash attention, unless `bench --attention` measured that plain is much faster."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Self

from localspec import options
from localspec.errors import LocalspecError
from localspec.files import file_of, locked, recalled, store
from localspec.gguf.header import Header
from localspec.llama.threads import MOST_THREADS, SMALL_BYTES, default_threads
from localspec.machine.llama_build import installed_build, processor
from localspec.models.local_models import identity

# Plain attention is chosen only where it is at least FASTER times as fast behind a long text, and takes at most LOST
# times the seconds of flash attention behind a short one.
FASTER, LOST = 1.2, 1.03
# Assumed tokens of a tool's result, and of the reply to it. The text before them is in the KV cache.
NEW_TOKENS, REPLY_TOKENS = 200, 200
# Reply tokens from a pass of each width. Widths above 1 have draft tokens, with the acceptance of placement.py.
_BROUGHT = {1: 1.0, 2: 1.6, 5: 2.31}
Passes = Mapping[tuple[int, int], float]  # (tokens in the cache, width of the pass) -> seconds of the pass


@dataclass(frozen=True, slots=True)
class Attention:
    """Seconds of a turn of a conversation, with flash attention and without."""

    flash: float  # behind a long text
    plain: float
    short_flash: float  # behind a short text
    short_plain: float

    @property
    def flash_attn(self) -> str:
        chosen = FASTER * self.plain <= self.flash and self.short_plain <= LOST * self.short_flash
        return "off" if chosen else "auto"

    @classmethod
    def of_passes(cls, flash: Passes, plain: Passes) -> Self:
        short, long = min(flash)[0], max(flash)[0]
        turns = ((passes, length) for length in (long, short) for passes in (flash, plain))
        return cls(*(turn_seconds(passes, length) for passes, length in turns))


def turn_seconds(passes: Passes, length: int) -> float:
    """Return the seconds of a turn behind `length` tokens.

    The widest passes read the new tokens, and all others decode the reply, in equal shares.
    """
    seconds = {width: seconds for (behind, width), seconds in passes.items() if behind == length}
    widest = max(seconds)
    of_reply = mean(seconds[width] / _BROUGHT[width] for width in seconds if width != widest)
    return NEW_TOKENS * seconds[widest] / widest + REPLY_TOKENS * of_reply


def has_choice(header: Header) -> bool:
    """Return whether attention is measured: not for small models, and not without attention."""
    return header.of_model("attention.head_count") > 0 and sum(t.bytes for t in header.tensors) >= SMALL_BYTES


def attention_of(
    path: Path, header: Header, threads: int | None, on_stage: Callable[[str], object] | None = None
) -> Attention | None:
    """Return a model's stored attention. If none is stored, return None, or with `on_stage` measure and store it.

    `threads`: the user's option. Loads that leave cores free share the choice of loads that use all cores.
    """
    threads = threads or min(default_threads(), MOST_THREADS)
    if not has_choice(header):
        return None
    # The "2" is a version, to be raised when stored seconds change their meaning.
    about = "2", identity(path), str(threads), processor(), installed_build()
    file = file_of(options.data_dir() / "attention", *about)
    stored = recalled(file, Attention)
    if stored is None and on_stage:
        from localspec.llama.attention import pass_seconds  # late: it loads llama.cpp

        on_stage("measuring attention on this CPU")
        with suppress(LocalspecError, OSError):
            passes = pass_seconds(path, threads)
            measured = Attention.of_passes(passes["on"], passes["off"])
            with locked(file.parent):  # the first of several processes decides
                if (stored := recalled(file, Attention)) is None:
                    store(file, stored := measured)
    return stored
