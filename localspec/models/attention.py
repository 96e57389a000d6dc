"""The choice of attention on a CPU: flash attention, unless `bench --attention` measured that plain is much faster."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean

from localspec import options
from localspec.errors import LocalspecError
from localspec.files import file_of, locked, recalled, store
from localspec.gguf.header import Header
from localspec.llama.threads import MOST_THREADS, SMALL_BYTES, default_threads
from localspec.machine.llama_build import installed_build, processor

FASTER = 1.2  # plain attention is chosen only where it is at least this many times as fast
# Assumed tokens of a tool's result, and of the reply to it. The text before them is in the KV cache.
NEW_TOKENS, REPLY_TOKENS = 200, 200
# Reply tokens from a pass of each width. Widths above 1 have draft tokens, with the acceptance of placement.py.
_BROUGHT = {1: 1.0, 2: 1.6, 5: 2.31}


@dataclass(frozen=True, slots=True)
class Attention:
    """Seconds of one layer's attention in a turn of a conversation, with flash attention and without."""

    flash: float
    plain: float

    @property
    def flash_attn(self) -> str:
        return "off" if FASTER * self.plain <= self.flash else "auto"


def turn_seconds(passes: Mapping[tuple[int, int], float]) -> float:
    """Return the seconds of a turn. `passes`: seconds of a pass, by (tokens in the cache, width of the pass).

    The widest passes read the new tokens, and all others decode the reply. In both kinds, passes count equally.
    """
    widest = max(width for _, width in passes)
    of_prompt = mean(seconds for (_, width), seconds in passes.items() if width == widest) / widest
    of_reply = mean(s / _BROUGHT[width] for (_, width), s in passes.items() if width != widest)
    return NEW_TOKENS * of_prompt + REPLY_TOKENS * of_reply


def attention_shape(header: Header) -> tuple[int, int, int] | None:
    """Return the numbers of heads and of KV heads, and a head's width; None if attention is not measured."""
    heads, of_kv = header.of_model("attention.head_count"), header.of_model("attention.head_count_kv")
    if isinstance(of_layers := header.get(f"{header.architecture}.attention.head_count_kv"), tuple):
        of_kv = max(map(int, of_layers), default=0)
    usual, of_kv = header.of_model("embedding_length") // max(heads, 1), of_kv or heads
    width, values = (header.of_model(f"attention.{part}_length") or usual for part in ("key", "value"))
    small = sum(tensor.bytes for tensor in header.tensors) < SMALL_BYTES  # attention is quick then
    if small or not heads or heads % of_kv or not width or width % 2 or width != values:
        return None
    return heads, of_kv, width


def attention_of(
    header: Header, threads: int | None, on_stage: Callable[[str], object] | None = None
) -> Attention | None:
    """Return a model's stored attention. If none is stored, return None, or with `on_stage` measure and store it.

    `threads`: the user's option. Loads that leave cores free share the choice of loads that use all cores.
    """
    threads = threads or min(default_threads(), MOST_THREADS)
    if (shape := attention_shape(header)) is None:
        return None
    # The "1" is a version, to be raised when stored seconds change their meaning.
    about = "1", *map(str, shape), str(threads), processor(), installed_build()
    file = file_of(options.data_dir() / "attention", *about)
    found = recalled(file, Attention)
    if found is None and on_stage:
        from localspec.llama.attention import attention_seconds  # late: it loads llama.cpp

        on_stage("measuring attention on this CPU")
        with suppress(LocalspecError, OSError):
            passes = attention_seconds(*shape, threads)
            measured = Attention(turn_seconds(passes["on"]), turn_seconds(passes["off"]))
            with locked(file.parent):  # the first of several processes decides
                if (found := recalled(file, Attention)) is None:
                    store(file, found := measured)
    return found
