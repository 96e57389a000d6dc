"""Measure how much memory a model needs, from llama.cpp's log of a load without allocations (`no_alloc`)."""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from localspec.llama.context import Context
from localspec.llama.devices import buffer_names
from localspec.llama.head import BlockContext, HeadCache, HeadContext
from localspec.llama.library import logger
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.stopping import Closing

_MIB = 1 << 20
_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+?),")
_CACHE_LAYER = re.compile(r"llama_kv_cache\w*: layer +\d+: dev = (\S+)")
_CACHE_SIZE = re.compile(r"llama_kv_cache\w*: size = +([\d.]+) MiB")
_STATE_SIZE = re.compile(r" (\S+) RS buffer size = +([\d.]+) MiB")
_NO_FLASH_ATTENTION = "Flash Attention not supported"  # llama.cpp logs this for "auto" if a device lacks it
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
