"""Time passes of a model on the CPU, with and without flash attention, after short and long texts."""

from contextlib import ExitStack
from itertools import product
from math import inf
from pathlib import Path
from time import process_time

from localspec.errors import BackendFailure
from localspec.llama.batch import Batch
from localspec.llama.cache import Cache, params_of, size_context
from localspec.llama.library import lib
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.llama.states import restore_state, state_of
from localspec.llama.threads import CONTENDED, usable_cores

SHORT, LONG = 24, 3072  # tokens in the cache before a pass
WIDTHS, CHUNK = (1, 2, 5, 128), 128  # tokens of the timed passes; tokens of the chunk that fills a cache
_ROUNDS, _SECONDS = 7, 2.0  # maximum passes of a width; maximum seconds of these passes
Seconds = dict[tuple[int, int], float]  # (tokens in the cache, tokens of a pass) -> seconds of the pass


def pass_seconds(loaded: Path | Model, threads: int) -> dict[str, Seconds]:
    """Return the seconds of the fastest passes of a model, with flash attention "on" and "off".

    Raises BackendFailure under CPU contention, and the errors of Model and Cache.
    """
    fastest: dict[str, Seconds] = {"on": {}, "off": {}}
    with ExitStack() as opened:
        model = loaded if isinstance(loaded, Model) else opened.enter_context(Model(loaded, devices=()))
        caches = dict[str, Cache]()
        for flash in fastest:
            length = LONG + _ROUNDS * sum(WIDTHS)
            params = params_of(model, Load(length, threads=threads, flash_attn=flash))
            size_context(params, CHUNK, rows=2)
            # Sequence 1 holds each copy before sequence 0 gets it.
            params.n_seq_max, params.kv_unified = 2, True
            caches[flash] = opened.enter_context(Cache(model, params))
        began = process_time()
        for length in (SHORT, LONG):
            ends = {flash: _fill(cache, length) for flash, cache in caches.items()}
            spent = dict.fromkeys(product(WIDTHS, caches), 0.0)
            for _, (width, flash) in product(range(_ROUNDS), spent):
                if spent[width, flash] < _SECONDS:
                    seconds, ends[flash] = _pass(caches[flash], ends[flash], width)
                    spent[width, flash] += seconds
                    least = fastest[flash].get((length, width), inf)
                    fastest[flash][length, width] = min(least, seconds)
            # A pass is slow if one of its threads gets too little processor time, because the others wait for it.
            usable = sum(cache.busy_seconds for cache in caches.values()) * min(threads, usable_cores())
            if threads > 1 and process_time() - began < CONTENDED * usable:
                raise BackendFailure("other programs use the processor", hint="measure again later")
    return fastest


def _fill(cache: Cache, length: int) -> int:
    """Fill sequence 0 with copies of one chunk, which takes less time than decoding all of them; return its end."""
    lib.llama_memory_clear(memory := cache.memory, False)
    _, end = _pass(cache, 0, min(length, CHUNK), keep=True)
    chunk = state_of(cache.handle) if lib.llama_memory_can_shift(memory) else None
    while end < length:
        if chunk is None:
            _, end = _pass(cache, end, CHUNK, keep=True)
            continue
        if not restore_state(cache.handle, chunk, 1):
            raise BackendFailure("llama.cpp cannot copy a KV cache", hint="set --flash-attn to on or off")
        lib.llama_memory_seq_add(memory, 1, 0, -1, end)
        lib.llama_memory_seq_cp(memory, 1, 0, -1, -1)
        lib.llama_memory_seq_rm(memory, 1, -1, -1)
        end += CHUNK
    return _pass(cache, end, 1)[1]  # only this first pass moves the copies to their positions


def _pass(cache: Cache, start: int, width: int, *, keep: bool = False) -> tuple[float, int]:
    """Time a pass from the position `start` on; return its seconds, and the position at which the text then ends."""
    before = cache.busy_seconds
    cache.run(lib.llama_decode, Batch(width).fill([0] * width, start, 0), width)
    # A recurrent state cannot step back, so the text stays longer.
    removed = not keep and lib.llama_memory_seq_rm(cache.memory, 0, start, -1)
    return cache.busy_seconds - before, start if removed else start + width
