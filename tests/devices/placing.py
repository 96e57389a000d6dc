"""Where the models of the tests go (`pytest --device NAME`), and how much of each device a load takes."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from localspec.llama.library import logger
from tests.devices.servers import Server


@contextmanager
def models_on(name: str) -> Iterator[None]:
    """Models go to this device unless a test says otherwise, here and in the processes that are started.

    A server serves one process at a time, so those have servers of their own.
    """
    environment = {"LOCALSPEC_DEVICE": name}
    with ExitStack() as opened:
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        addresses: list[str] = []
        if number := re.fullmatch(r"RPC(\d+)", name):
            here, elsewhere = (
                [opened.enter_context(Server()).address for _ in range(int(number[1]) + 1)] for _ in range(2)
            )
            environment["LOCALSPEC_RPC"] = ",".join(elsewhere)
            addresses = here
        for variable, value in environment.items():
            patch.setenv(variable, value)
        from localspec.llama import devices
        from localspec.llama.devices import add_servers

        add_servers(addresses)
        (chosen,) = (device for device in devices.devices() if device.name == name)
        patch.setattr(devices, "default_gpu", lambda: chosen if chosen.is_gpu else None)
        yield


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
