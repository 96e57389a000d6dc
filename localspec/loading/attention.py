"""The choice of attention on a CPU: flash attention, unless plain attention was measured to be much faster."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from time import time
from typing import TYPE_CHECKING, Self

from localspec import options
from localspec.errors import LocalspecError
from localspec.files import file_of, locked, recalled, store, write_atomically
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import Header
from localspec.llama.load import Load
from localspec.llama.threads import SMALL_BYTES, default_threads
from localspec.machine.devices import available_bytes
from localspec.machine.llama_build import installed_build, processor
from localspec.models.local_models import identity
from localspec.models.registry import Pair
from localspec.stopping import Stop, interruptible

if TYPE_CHECKING:  # imported only for types, because these imports load llama.cpp
    from localspec.llama.context import Context
    from localspec.llama.model import Model

# Plain attention must be FASTER times as fast after a long text, and take at most LOST times as long after a short one.
FASTER, LOST = 1.2, 1.03
# Assumed tokens of a turn: a tool's result, and the reply to it. The text before them is in the KV cache.
NEW_TOKENS, REPLY_TOKENS = 200, 200
# By pass width: tokens of the reply that a pass gives, if draft tokens are accepted at the rates of placement.py.
_BROUGHT = {1: 1.0, 2: 1.6, 5: 2.31}
RETRY_SECONDS = 3600.0  # wait this long after a failed measurement in idle time
SPARE_BYTES = 1_000_000_000  # a measurement in idle time needs this much memory, and as much as the weights
_OnStage = Callable[[str], object] | None
Passes = Mapping[tuple[int, int], float]  # (tokens in the cache, width of the pass) -> seconds of the pass


@dataclass(frozen=True, slots=True)
class Attention:
    """The seconds of one turn of a conversation, with flash attention and without."""

    flash: float  # after a long text, with flash attention
    plain: float
    short_flash: float  # after a short text, with flash attention
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
    """Return the seconds of a turn after `length` tokens.

    The widest passes prefill the new tokens. All other widths decode equal shares of the reply.
    """
    seconds = {width: seconds for (behind, width), seconds in passes.items() if behind == length}
    widest = max(seconds)
    of_reply = mean(seconds[width] / _BROUGHT[width] for width in seconds if width != widest)
    return NEW_TOKENS * seconds[widest] / widest + REPLY_TOKENS * of_reply


def has_choice(header: Header) -> bool:
    """Return whether to measure attention: not for small models, nor for models without attention."""
    return header.of_model("attention.head_count") > 0 and sum(t.bytes for t in header.tensors) >= SMALL_BYTES


def _file(path: Path, threads: int) -> Path:
    # The "2" is a version. Raise it if stored seconds change their meaning.
    about = "2", identity(path), str(threads), processor(), installed_build()
    return file_of(options.data_dir() / "attention", *about)


def attention_of(
    path: Path, header: Header, threads: int | None, on_stage: _OnStage = None, model: "Model | None" = None
) -> Attention | None:
    """Return a model's stored attention. If none is stored, return None, or with `on_stage` measure and store it.

    `threads`: the user's option. Loads that leave cores free use the choice that was made for loads on all cores.
    """
    threads = threads or default_threads()
    if not has_choice(header):
        return None
    stored = recalled(file := _file(path, threads), Attention)
    if stored is None and on_stage:
        from localspec.llama.measuring import pass_seconds  # imported late, because this loads llama.cpp

        on_stage("measuring attention on this CPU")
        with suppress(LocalspecError, OSError):
            passes = pass_seconds(model or path, threads)
            measured = Attention.of_passes(passes["on"], passes["off"])
            with locked(file.parent):  # the first of several processes stores its measurement
                if (stored := recalled(file, Attention)) is None:
                    store(file, stored := measured)
    return stored


def measures_attention(load: Load, kind: DraftKind) -> bool:
    """Return whether to measure if a target is faster with flash attention: only on a CPU, if the user has no wish."""
    # A quantised KV cache needs flash attention. An assistant head reads the target's cache, so both need the same.
    reads_cache = kind is DraftKind.ASSISTANT
    return not load.devices and (load.kv_type, load.flash_attn) == ("f16", "auto") and not reads_cache


def measure_when_idle(
    pair: Pair, load: Load, threads: int | None, target: "Context", awaited: Callable[[], bool]
) -> None:
    """Measure the attention of a loaded target for later loads, until `awaited()` is true.

    Do not measure while prompt caches of this model are stored, because another attention could not use them.
    """
    path, header, disk = pair.target.here, pair.target.header, target.prompt_cache.disk
    if not (measures_attention(load, pair.drafter) and has_choice(header)):
        return
    lacks_memory = (free := available_bytes()) is not None and free < target.model.size_bytes + SPARE_BYTES
    if lacks_memory or (disk and disk.has_states()) or attention_of(path, header, threads):
        return
    tried = _file(path, threads or default_threads()).with_suffix(".tried")
    with suppress(OSError):
        if tried.exists() and time() - tried.stat().st_mtime < RETRY_SECONDS:
            return
        write_atomically(tried, b"")
        measure, stop = partial(attention_of, path, header, threads, bool, target.model), Stop()
        found = interruptible(measure, stop, cancelled=awaited)
        if stop.asked:
            tried.unlink()
        if found and found.flash_attn == "off":
            target.prompt_cache.disk = None  # later loads could not use prompt caches of this load
