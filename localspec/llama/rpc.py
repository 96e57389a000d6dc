"""Devices of other machines: llama.cpp's RPC servers, added to the devices of this process for as long as it lives."""

import ctypes
from collections.abc import Iterable

from localspec.errors import BackendFailure, BadSetting
from localspec.health.build import rebuild_command
from localspec.llama.library import symbol
from localspec.llama.watch import waiting_for

_registry_of = symbol("ggml_backend_reg_by_name", ctypes.c_void_p, [ctypes.c_char_p])
_function_of = symbol(
    "ggml_backend_reg_get_proc_address", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
)
_register = symbol("ggml_backend_register", None, [ctypes.c_void_p])
_AddServer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)

_added: set[str] = set()


def add_servers(addresses: Iterable[str]) -> None:
    """Add the devices of servers that have just answered: llama.cpp aborts or hangs on others.

    Raises BadSetting where the build has no RPC, BackendFailure for a server without devices.
    """
    for address in addresses:
        if address not in _added:
            _add(address)
            _added.add(address)


def _add(address: str) -> None:
    rpc = _registry_of(b"RPC")
    if not rpc:
        raise BadSetting("this build of llama.cpp has no RPC", hint=rebuild_command("GGML_RPC=on"))
    with waiting_for(f"the RPC server {address}"):
        server = _AddServer(_function_of(rpc, b"ggml_backend_rpc_add_server"))(address.encode())
    if not server:
        raise BackendFailure(
            f"the RPC server {address} has no devices", hint="see what it says where it runs"
        )
    _register(server)
