"""What a real load takes of each device, from the lines in which llama.cpp names its buffers."""

import logging
import re
from collections import Counter
from collections.abc import Callable

from localspec.llama.library import logger

MIB = 1 << 20
_BUFFER = re.compile(r"(\S+) (model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_PARTS = {"model": "weights", "KV": "cache", "RS": "cache", "compute": "compute"}


def taken_by(load: Callable[[], None], gpu: str | None) -> Counter[tuple[str, str]]:
    """Bytes by part and device of what is loaded meanwhile; what is not the GPU's is the CPU's."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        load()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    found: Counter[tuple[str, str]] = Counter()
    for match in filter(None, map(_BUFFER.search, lines)):
        on_gpu = gpu is not None and match[1].startswith(gpu) and not match[1].endswith("_Host")
        found[_PARTS[match[2]], gpu if on_gpu and gpu else "CPU"] += float(match[3]) * MIB
    return found
