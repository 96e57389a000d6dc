"""The memory needs of a model by llama.cpp's own plan: reads the log of a load without memory (`no_alloc`)."""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from localspec.health.stopping import Closing
from localspec.llama.context import Context
from localspec.llama.devices import buffer_names
from localspec.llama.head import BlockContext, HeadContext
from localspec.llama.library import logger
from localspec.llama.model import Model

_MIB = 1 << 20
_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+?),")
_CACHE_LAYER = re.compile(r"llama_kv_cache\w*: layer +\d+: dev = (\S+)")
_CACHE_SIZE = re.compile(r"llama_kv_cache\w*: size = +([\d.]+) MiB")
_STATE_SIZE = re.compile(r" (\S+) RS buffer size = +([\d.]+) MiB")
_NO_FLASH_ATTENTION = "Flash Attention not supported"  # by a device: off where it is auto
_COMPUTE_SIZE = re.compile(r"^\w+: +(\S+) compute buffer size = +([\d.]+) MiB")


class BufferLog(logging.Handler):
    """Collects the sizes from llama.cpp's log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: dict[int, str] = {}
        self.forget()

    def forget(self) -> None:
        """Begin a new context; the layers belong to the model and stay."""
        self.cache: dict[str, float] = {}
        self.compute: dict[str, float] = {}
        self.flash_attention = True
        self._cache_layers: list[str] = []  # devices of the layers of the cache that is being described

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if found := _LAYER.search(line):
            self.layers[int(found[1])] = found[2]
        elif found := _CACHE_LAYER.search(line):
            self._cache_layers.append(found[1])
        elif found := _CACHE_SIZE.search(line):
            self._share_out(float(found[1]) * _MIB)
        elif found := _STATE_SIZE.search(line):
            self.cache[found[1]] = self.cache.get(found[1], 0) + float(found[2]) * _MIB
        elif found := _COMPUTE_SIZE.search(line):
            self.compute[found[1]] = float(found[2]) * _MIB
        elif _NO_FLASH_ATTENTION in line:
            self.flash_attention = False

    def _share_out(self, size: float) -> None:
        """A cache lies with its layers; each layer has an equal part."""
        for device in self._cache_layers:
            self.cache[device] = self.cache.get(device, 0) + size / len(self._cache_layers)
        self._cache_layers = []


class Measurer(Closing):
    """Keeps the last model open, because contexts of many lengths are asked for in a row."""

    def __init__(self) -> None:
        self._log = BufferLog()
        self._key: tuple[Path, dict[str, Any]] | None = None
        self._model: Model | None = None
        self._names = buffer_names()

    def measure(
        self,
        path: Path,
        place: dict[str, Any],
        context: dict[str, Any],
        kind: str = "draft-simple",
        target: Path | None = None,
    ) -> dict[str, Any]:
        """Bytes of cache and of compute buffers by device, and the device of each layer.

        place, context: what Model and Context take by these names, or HeadContext for a head of this kind and target.
        Raises what loading raises.
        """
        log = self._log
        with _heard_by(log):
            if self._model is None or (path, place) != self._key:
                self.close()
                log.layers = {}
                self._model, self._key = Model(path, no_alloc=True, **place), (path, place)
            if target is None:
                log.forget()
                with Context(self._model, **context) as opened:
                    checkpoints = opened.needs_checkpoints
                    log.compute["CPU"] = log.compute.get("CPU", 0) + opened.shared.cut_bytes
            else:
                of_head, checkpoints = dict(log.layers), False
                self._open_head(kind, target, place, context)
                log.layers = of_head
        cache, compute = (
            {self._names.get(name, name): size for name, size in part.items()}
            for part in (log.cache, log.compute)
        )
        return {
            "cache": cache,
            "compute": compute,
            "layers": tuple(log.layers[layer] for layer in sorted(log.layers)),
            "flash": log.flash_attention,
            "checkpoints": checkpoints,
        }

    def close(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.close()

    def _open_head(self, kind: str, target: Path, place: dict[str, Any], context: dict[str, Any]) -> None:
        assert self._model is not None
        with ExitStack() as opened:
            inside = self._key is not None and self._key[0] == target
            model = self._model if inside else opened.enter_context(Model(target, no_alloc=True, **place))
            beside = opened.enter_context(Context(model, length=context["length"]))
            self._log.forget()
            if kind == "draft-dflash":
                opened.enter_context(BlockContext(self._model, beside, layers=1, anchored=False, **context))
            else:
                opened.enter_context(
                    HeadContext(self._model, beside, encodes=kind == "draft-eagle3", **context)
                )


@contextmanager
def _heard_by(log: BufferLog) -> Iterator[None]:
    """Send llama.cpp's log to this handler alone: a plan is not a load."""
    level, propagates = logger.level, logger.propagate
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
        logger.propagate = propagates
