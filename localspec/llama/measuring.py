"""Measure a model for the plan of its load: the memory that it needs, and passes with and without flash attention.

llama.cpp logs the memory of a load without allocations (`no_alloc`).
"""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

from localspec.errors import BackendFailure
from localspec.llama.batch import Batch
from localspec.llama.cache import Cache, params_of, size_context
from localspec.llama.cached_text import restore_state, state_of
from localspec.llama.context import Context
from localspec.llama.devices import buffer_names
from localspec.llama.head import BlockContext, HeadCache, HeadContext
from localspec.llama.library import lib, logger
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.llama.threads import CONTENDED, usable_cores
from localspec.stopping import Closing

_MIB = 1 << 20
_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+?),")
_CACHE_LAYER = re.compile(r"llama_kv_cache\w*: layer +\d+: dev = (\S+)")
_CACHE_SIZE = re.compile(r"llama_kv_cache\w*: size = +([\d.]+) MiB")
_STATE_SIZE = re.compile(r" (\S+) RS buffer size = +([\d.]+) MiB")
_NO_FLASH_ATTENTION = "Flash Attention not supported"  # llama.cpp's log for "auto" if a device lacks it
_COMPUTE_SIZE = re.compile(r"^\w+: +(\S+) compute buffer size = +([\d.]+) MiB")


class BufferLog(logging.Handler):
    """A log handler that reads buffer sizes from llama.cpp's lines, and hides these lines from other handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: dict[int, str] = {}
        self.forget()

    def forget(self) -> None:
        """Forget the sizes of the last context; keep the layers of the model."""
        self.cache: dict[str, float] = {}
        self.compute: dict[str, float] = {}
        self.flash_attention = True
        self._cache_layers: list[str] = []  # device of each layer in a cache whose size is not logged yet

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if found := _LAYER.search(line):
            self.layers[int(found[1])] = found[2]
        elif found := _CACHE_LAYER.search(line):
            self._cache_layers.append(found[1])
        elif found := _CACHE_SIZE.search(line):
            for device in self._cache_layers:
                part = float(found[1]) * _MIB / len(self._cache_layers)
                self.cache[device] = self.cache.get(device, 0) + part
            self._cache_layers = []
        elif found := _STATE_SIZE.search(line):
            self.cache[found[1]] = self.cache.get(found[1], 0) + float(found[2]) * _MIB
        elif found := _COMPUTE_SIZE.search(line):
            self.compute[found[1]] = float(found[2]) * _MIB
        elif _NO_FLASH_ATTENTION in line:
            self.flash_attention = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        level, propagates = logger.level, logger.propagate
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagates


class Measurer(Closing):
    """A measurer of a model's buffers. It keeps the last model open, to measure contexts of other lengths."""

    def __init__(self) -> None:
        self._log = BufferLog()
        self._key: tuple[Path, dict[str, Any]] | None = None
        self._model: Model | None = None
        self._names = buffer_names()

    def measure(
        self,
        path: Path,
        load: Load,
        kind: str = "draft-simple",
        target: Path | None = None,
    ) -> dict[str, Any]:
        """Return the buffer bytes of each device for a context of `path`. `target`: for a head, its target's path."""
        log, place = self._log, load.place
        with log.listening():
            if self._model is None or (path, place) != self._key:
                self.close()
                log.layers = {}
                self._model, self._key = Model(path, no_alloc=True, **place), (path, place)
            if target is None:
                log.forget()
                with Context(self._model, load) as plain:
                    checkpoints = plain.needs_checkpoints
                    log.compute["CPU"] = log.compute.get("CPU", 0) + plain.shared.top_k_bytes
            else:
                of_head, checkpoints = dict(log.layers), False
                with ExitStack() as opened:
                    model = self._model
                    if path != target:
                        model = opened.enter_context(Model(target, no_alloc=True, **place))
                    beside = opened.enter_context(Context(model, length=load.length))
                    log.forget()
                    head: HeadCache
                    if kind == "draft-dflash":
                        head = BlockContext(self._model, beside, load, layers=1, anchored=False)
                    else:
                        head = HeadContext(self._model, beside, load, encodes=kind == "draft-eagle3")
                    opened.enter_context(head)
                log.layers = of_head
        cache, compute = (
            {self._names.get(name, name): size for name, size in part.items()}
            for part in (log.cache, log.compute)
        )
        layers = tuple(log.layers[layer] for layer in sorted(log.layers))
        measured = {"cache": cache, "compute": compute, "layers": layers, "flash": log.flash_attention}
        return measured | {"checkpoints": checkpoints}

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
        self._model = None


SHORT, LONG = 24, 3072  # number of tokens in the cache before a timed pass
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
            # A copied chunk is restored into sequence 1, and then added to sequence 0.
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
                raise BackendFailure("no measurement: other programs use the CPU", hint="measure again later")
    return fastest


def _fill(cache: Cache, length: int) -> int:
    """Fill sequence 0 with copies of one decoded chunk, which is faster than decoding each; return its end position."""
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
    return _pass(cache, end, 1)[1]  # an untimed pass, because it also moves the copies to their positions


def _pass(cache: Cache, start: int, width: int, *, keep: bool = False) -> tuple[float, int]:
    """Time a pass from the position `start` on; return its seconds, and the position at which the text then ends."""
    before = cache.busy_seconds
    cache.run(lib.llama_decode, Batch(width).fill([0] * width, start, 0), width)
    # A recurrent state cannot step back, so the text stays longer.
    removed = not keep and lib.llama_memory_seq_rm(cache.memory, 0, start, -1)
    return cache.busy_seconds - before, start if removed else start + width
