"""RPC servers of the installed llama.cpp on loopback, each a process of its own that can be killed or stopped."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from localspec.machine.llama_build import has_backend

HAS_RPC = has_backend("rpc")


class Server:
    """One server with the CPU as its device; a context manager that ends it."""

    def __init__(self, port: int | None = None) -> None:
        self.address = f"127.0.0.1:{port or free_port()}"
        command = [sys.executable, "-m", "tests.devices.servers", self.address]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        while b"transport" not in self._process.stdout.readline():
            assert self._process.poll() is None, "the server did not start"
        self._wait_until_it_listens()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """It hangs from here on, as a machine does that was unplugged."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.kill()
        self._process.stdout.close()

    def _wait_until_it_listens(self) -> None:
        host, port = self.address.split(":")
        while True:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
                return
            time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def serve(address: str) -> None:
    """llama.cpp's own server, from the installed library: for ever."""
    from localspec.llama.library import symbol

    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    registry = symbol("ggml_backend_reg_by_name", pointer, [text])(b"RPC")
    function = symbol("ggml_backend_reg_get_proc_address", pointer, [pointer, text])
    start = ctypes.CFUNCTYPE(None, text, text, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(pointer))
    cpu = symbol("ggml_backend_dev_by_type", pointer, [ctypes.c_int])(0)
    devices = (pointer * 1)(cpu)
    start(function(registry, b"ggml_backend_rpc_start_server"))(address.encode(), None, 1, 1, devices)


if __name__ == "__main__":
    serve(sys.argv[1])
