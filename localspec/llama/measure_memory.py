"""Says what a model would need, without reserving it: a child process that reads requests and answers each.

    python -m localspec.llama.measure_memory HEALTH [HOST:PORT ...]        one JSON object a line, in and out

HEALTH is a JSON object, the fields of localspec.health.check.Health; the addresses are those of RPC servers.

{"devices": true} lists the devices; anything else holds the arguments of `measure`. The numbers are
llama.cpp's own, from what it logs while it plans its buffers.
"""

import json
import logging
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import LocalspecError
from localspec.health.check import Health, assume
from localspec.llama.child_limits import limit_this_process
from localspec.llama.log import logger

if TYPE_CHECKING:  # what loads llama.cpp is imported once its health is known
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
        """A cache lies with its layers, each of which has an equal part of it."""
        for device in self._cache_layers:
            self.cache[device] = self.cache.get(device, 0) + size / len(self._cache_layers)
        self._cache_layers = []


class Measurer:
    """Keeps the last model open, because contexts of many lengths are asked for in a row."""

    def __init__(self, log: BufferLog) -> None:
        from localspec.llama.devices import buffer_names

        self._log = log
        self._key: tuple[str, dict[str, Any]] | None = None
        self._model: Model | None = None
        self._names = buffer_names()

    def measure(
        self,
        path: str,
        place: dict[str, Any],
        context: dict[str, Any],
        kind: str = "model",
        target: str | None = None,
    ) -> dict[str, Any]:
        """Bytes of cache and of compute buffers by device, and the device of each layer.

        place, context: what Model and Context take by these names, or HeadContext for a head of this kind and target.
        """
        from localspec.llama.context import Context
        from localspec.llama.model import Model

        if self._model is None or (path, place) != self._key:
            if self._model is not None:
                self._model.close()
            self._log.layers = {}
            self._model, self._key = Model(Path(path), no_alloc=True, **place), (path, place)
        log = self._log
        if target is None:
            log.forget()
            with Context(self._model, **context) as opened:
                checkpoints = opened.needs_checkpoints
        else:
            of_head, checkpoints = dict(log.layers), False
            self._open_head(kind, target, place, context)
            log.layers = of_head
        layers = [log.layers[layer] for layer in sorted(log.layers)]
        cache, compute = (
            {self._names.get(name, name): size for name, size in part.items()}
            for part in (log.cache, log.compute)
        )
        return {
            "cache": cache,
            "compute": compute,
            "layers": layers,
            "flash": log.flash_attention,
            "checkpoints": checkpoints,
        }

    def _open_head(self, kind: str, target: str, place: dict[str, Any], context: dict[str, Any]) -> None:
        from localspec.llama.block import BlockContext
        from localspec.llama.context import Context
        from localspec.llama.head import HeadContext
        from localspec.llama.model import Model

        assert self._model is not None
        with ExitStack() as opened:
            inside = self._key is not None and self._key[0] == target
            model = (
                self._model if inside else opened.enter_context(Model(Path(target), no_alloc=True, **place))
            )
            beside = opened.enter_context(Context(model, length=context["length"]))
            self._log.forget()
            if kind == "dflash":
                opened.enter_context(BlockContext(self._model, beside, layers=1, anchored=False, **context))
            else:
                opened.enter_context(HeadContext(self._model, beside, encodes=kind == "eagle3", **context))


def answer(measurer: Measurer, request: dict[str, Any]) -> dict[str, Any]:
    from localspec.llama.devices import devices

    if request.get("devices"):
        fields = ("name", "kind", "free", "total", "shared")
        listed = [(d.name, d.kind, d.free_bytes, d.total_bytes, d.shares_memory) for d in devices()]
        return {"devices": [dict(zip(fields, values, strict=True)) for values in listed]}
    try:
        return measurer.measure(**request)
    except LocalspecError as error:
        return {"error": str(error), "hint": error.hint, "kind": type(error).__name__}


def main() -> None:
    limit_this_process()
    found, *servers = sys.argv[1:]
    assume(Health(**json.loads(found)))
    if servers:
        from localspec.llama.rpc import add_servers
        from localspec.llama.watch import tell_lost_by

        tell_lost_by(lambda what, hint: print(json.dumps({"lost": what, "hint": hint}), flush=True))
        add_servers(servers)
    log = BufferLog()
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    measurer = Measurer(log)
    for line in sys.stdin:
        print(json.dumps(answer(measurer, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
