"""The devices and features of the installed llama.cpp."""

import ctypes
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from localspec.errors import BackendFailure, BadSetting
from localspec.health.devices import Device, DeviceKind
from localspec.health.installed import rebuild_command
from localspec.llama.library import lib, symbol, text_of
from localspec.llama.watch import waiting_for

_registry_of = symbol("ggml_backend_reg_by_name", ctypes.c_void_p, [ctypes.c_char_p])
_function_of = symbol(
    "ggml_backend_reg_get_proc_address", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
)
_register = symbol("ggml_backend_register", None, [ctypes.c_void_p])
_AddServer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


def add_servers(addresses: Iterable[str]) -> None:
    """Add the devices of servers that have just answered: llama.cpp aborts or hangs on others.

    Raises BadSetting if the build has no RPC, BackendFailure for a server without devices.
    """
    for address in addresses:
        _add(address)


@cache
def _add(address: str) -> None:
    rpc = _registry_of(b"RPC")
    if not rpc:
        raise BadSetting("this build of llama.cpp has no RPC", hint=rebuild_command("GGML_RPC=on"))
    with waiting_for(f"the RPC server {address}"):
        server = _AddServer(_function_of(rpc, b"ggml_backend_rpc_add_server"))(address.encode())
    if not server:
        raise BackendFailure(
            f"the RPC server {address} has no devices", hint="read its output on that machine"
        )
    _register(server)


_KINDS: tuple[DeviceKind, ...] = ("cpu", "gpu", "igpu", "accel")  # enum ggml_backend_dev_type
_count = symbol("ggml_backend_dev_count", ctypes.c_size_t, [])
_get = symbol("ggml_backend_dev_get", ctypes.c_void_p, [ctypes.c_size_t])
_name = symbol("ggml_backend_dev_name", ctypes.c_char_p, [ctypes.c_void_p])
_description = symbol("ggml_backend_dev_description", ctypes.c_char_p, [ctypes.c_void_p])
_type = symbol("ggml_backend_dev_type", ctypes.c_int, [ctypes.c_void_p])
_registry = symbol("ggml_backend_dev_backend_reg", ctypes.c_void_p, [ctypes.c_void_p])
_registry_name = symbol("ggml_backend_reg_name", ctypes.c_char_p, [ctypes.c_void_p])
_properties = symbol("ggml_backend_dev_get_props", None, [ctypes.c_void_p, ctypes.c_void_p])
_memory = symbol(
    "ggml_backend_dev_memory",
    None,
    [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)],
)


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("free", ctypes.c_size_t),
        ("total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 32),  # five of them; the rest is room for those of later releases
    )


@dataclass(frozen=True, slots=True)
class BackendSummary:
    """Version and features of the installed llama.cpp."""

    binding_version: str  # of llama-cpp-python
    llama_version: str
    system_info: str  # instruction sets and backends, in llama.cpp's own words
    supports_gpu: bool  # has one of this machine to compute on


def devices() -> list[Device]:
    """Every device, with its memory as it is now; a GPU that two backends know is listed once."""
    handles = {_device_id(handle) or str(handle): handle for handle in reversed(_handles())}
    return [_device(handle) for handle in reversed(handles.values())]


def buffer_names() -> dict[str, str]:
    """Names that llama.cpp gives to buffers on devices of other machines -> names of the devices.

    The former count the devices of each server, the latter those of all.
    """
    found: dict[str, str] = {}
    for device in devices():
        if device.backend == "RPC":
            index = sum(name.endswith(f"[{device.description}]") for name in found)
            found[f"RPC{index}[{device.description}]"] = device.name
    return found


def default_gpu() -> Device | None:
    """The default GPU: the first discrete one, else the first integrated one."""
    known = devices()
    return next((device for kind in ("gpu", "igpu") for device in known if device.kind == kind), None)


def handle_of(device: Device) -> int:
    """llama.cpp's pointer to a device, for this package only."""
    return next(handle for handle in _handles() if text_of(_name(handle)) == device.name)


def backend_summary() -> BackendSummary:
    from importlib.metadata import version  # takes 15 ms, and a reply needs none of this

    return BackendSummary(
        binding_version=version("llama-cpp-python"),
        llama_version=text_of(lib.llama_version()),
        system_info=text_of(lib.llama_print_system_info()).strip(),
        # llama_supports_gpu_offload is true of every build with RPC.
        supports_gpu=any(device.is_gpu and not device.remote for device in devices()),
    )


def _handles() -> list[int]:
    handles = (_get(index) for index in range(_count()))
    return [handle for handle in handles if _type(handle) < len(_KINDS)]


def _device_id(handle: int) -> str:
    """Its place on the bus; "" if unknown, as for other machines."""
    if text_of(_registry_name(_registry(handle))) == "RPC":
        return ""
    found = _Properties()
    _properties(handle, ctypes.byref(found))
    return text_of(found.id)


def _device(handle: int) -> Device:
    kind, backend = _KINDS[_type(handle)], text_of(_registry_name(_registry(handle)))
    # Metal calls Apple's own GPUs discrete.
    shares_memory = kind == "igpu" or (backend == "MTL" and platform.machine() == "arm64")
    name, description = text_of(_name(handle)), text_of(_description(handle))  # of an RPC device: HOST:PORT
    found = Device(name, kind, 0, 0, shares_memory, description, backend)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with waiting_for(found.remote):
        _memory(handle, ctypes.byref(free), ctypes.byref(total))
    return replace(found, free_bytes=free.value, total_bytes=total.value)
