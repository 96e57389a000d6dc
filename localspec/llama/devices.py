"""The devices and features of the installed llama.cpp."""

import ctypes
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from localspec.errors import BackendFailure, BadSetting
from localspec.llama.layouts import build_of
from localspec.llama.library import layout, lib, symbol, text_of
from localspec.llama.lifetimes import computes_here, waiting_for
from localspec.machine.devices import Device, DeviceKind
from localspec.machine.llama_build import rebuild_command
from localspec.machine.servers import use_servers, used_servers

_POINTER, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_registry_of = symbol("ggml_backend_reg_by_name", _POINTER, [_TEXT])
_function_of = symbol("ggml_backend_reg_get_proc_address", _POINTER, [_POINTER, _TEXT])
_register = symbol("ggml_backend_register", None, [_POINTER])
_AddServer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


def connect(rpc: str, on_stage: Callable[[str], object] = lambda stage: None) -> None:
    """Add the devices of all RPC servers; if a server fails, add none. Raises BadSetting, BackendFailure."""
    on_stage("connecting to the RPC servers")
    use_servers(rpc)
    add_servers(used_servers())


def add_servers(addresses: Iterable[str]) -> None:
    """Add the devices of RPC servers. Raises BadSetting if llama.cpp lacks RPC, else BackendFailure."""
    for address in addresses:
        _add(address)


@cache
def _add(address: str) -> None:
    rpc = _registry_of(b"RPC")
    if not rpc:
        hint = f"rebuild llama.cpp with RPC: {rebuild_command('GGML_RPC=on')}"
        raise BadSetting("the installed llama.cpp has no RPC", hint=hint)
    with waiting_for(f"the RPC server {address}"):
        server = _AddServer(_function_of(rpc, b"ggml_backend_rpc_add_server"))(address.encode())
    if not server:
        what = f"the RPC server {address} has no devices"
        raise BackendFailure(what, hint="look at the server's output on that machine, and restart it")
    _register(server)


_KINDS: tuple[DeviceKind, ...] = ("cpu", "gpu", "igpu", "accel")  # in the order of C's ggml_backend_dev_type
_count = symbol("ggml_backend_dev_count", _SIZE, [])
_get = symbol("ggml_backend_dev_get", _POINTER, [_SIZE])
_name = symbol("ggml_backend_dev_name", _TEXT, [_POINTER])
_description = symbol("ggml_backend_dev_description", _TEXT, [_POINTER])
_type = symbol("ggml_backend_dev_type", ctypes.c_int, [_POINTER])
_registry = symbol("ggml_backend_dev_backend_reg", _POINTER, [_POINTER])
_registry_name = symbol("ggml_backend_reg_name", _TEXT, [_POINTER])
_properties = symbol("ggml_backend_dev_get_props", None, [_POINTER, _POINTER])
_memory = symbol("ggml_backend_dev_memory", None, [_POINTER, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)])


class _Properties(ctypes.Structure):  # the C structure ggml_backend_dev_props
    _fields_ = (
        ("name", _TEXT), ("description", _TEXT), ("free", _SIZE), ("total", _SIZE), ("type", ctypes.c_int),
        ("id", _TEXT), ("capabilities", ctypes.c_bool * 32),  # llama.cpp writes five bools; the rest is spare
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BackendSummary:
    binding_version: str  # version of llama-cpp-python
    llama_version: str
    build: str  # the folder of llama.cpp, its version and commit
    layout: str  # the version of llama.cpp that introduced the layout of its parameters
    system_info: str  # instruction sets and backends, as llama.cpp prints them
    supports_gpu: bool  # whether llama.cpp can use a GPU of this machine


def devices() -> list[Device]:
    """Return every device with its free memory. A GPU that two backends can use is listed once."""
    known = {_device_id(handle) or name: handle for name, handle in reversed(handles().items())}
    return [_device(handle) for handle in reversed(known.values())]


def buffer_names() -> dict[str, str]:
    """Return device names by RPC buffer names, which number the devices of each server from 0."""
    names: dict[str, str] = {}
    for device in devices():
        if device.backend == "RPC":
            index = sum(name.endswith(f"[{device.description}]") for name in names)
            names[f"RPC{index}[{device.description}]"] = device.name
    return names


def default_gpu() -> Device | None:
    """Return the first discrete GPU, or else the first integrated one."""
    known = devices()
    return next((device for kind in ("gpu", "igpu") for device in known if device.kind == kind), None)


def backend_summary() -> BackendSummary:
    from importlib.metadata import version  # imported late, because the import takes 15 ms

    # The function llama_supports_gpu_offload is no help, because it is true for every build with RPC.
    gpu = any(device.is_gpu and not device.remote for device in devices())
    about = text_of(lib.llama_version()), build_of(lib._lib), layout
    info = text_of(lib.llama_print_system_info()).strip()
    return BackendSummary(version("llama-cpp-python"), *about, info, gpu)


def handles() -> dict[str, int]:
    found = [handle for handle in map(_get, range(_count())) if _type(handle) < len(_KINDS)]
    if not computes_here() and any(_KINDS[_type(handle)] != "cpu" for handle in found):
        what = "GPUs and RPC servers do not work in a process that was forked after llama.cpp was loaded"
        hint = "start the process with multiprocessing.set_start_method('spawn'), or load nothing before the fork"
        raise BackendFailure(what, hint=hint)
    return {text_of(_name(handle)): handle for handle in found}


def _device_id(handle: int) -> str:
    """Return the bus address of a device; "" if it is unknown or the device is remote."""
    if text_of(_registry_name(_registry(handle))) == "RPC":
        return ""
    found = _Properties()
    _properties(handle, ctypes.byref(found))
    return text_of(found.id)


def _device(handle: int) -> Device:
    kind, backend = _KINDS[_type(handle)], text_of(_registry_name(_registry(handle)))
    # Metal reports Apple's own GPUs as discrete, although they share the CPU's memory.
    shares_memory = kind == "igpu" or (backend == "MTL" and platform.machine() == "arm64")
    name, description = text_of(_name(handle)), text_of(_description(handle))  # an RPC device: HOST:PORT
    device = Device(name, kind, 0, 0, shares_memory, description, backend)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with waiting_for(device.remote):
        _memory(handle, ctypes.byref(free), ctypes.byref(total))
    return replace(device, free_bytes=free.value, total_bytes=total.value)
