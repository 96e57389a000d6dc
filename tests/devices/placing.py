"""Where the models of the tests go: `pytest --device NAME`."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

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
