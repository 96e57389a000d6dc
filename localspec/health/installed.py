"""Which llama.cpp is installed, found without loading it, and the command to reinstall it."""

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from localspec.errors import BadSetting

LLAMA_CPP_PYTHON = "llama-cpp-python>=0.3.36,<0.4"
_LIBRARY = re.compile(r"\.(so|dylib|dll)[.\d]*$")
# Optional libraries; every build from source has the CPU's.
BACKENDS = ("cuda", "hip", "metal", "musa", "rpc", "sycl", "vulkan")
# What an update of a driver replaces, one of them for each of CUDA, HIP, Level Zero and Vulkan.
_DRIVER_FILES = (
    *("/usr/lib*/libcuda.so.1", "/usr/lib/*/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"),
    *("/run/opengl-driver/lib/libcuda.so.1", "/opt/rocm/.info/version", "/usr/lib/*/libze_intel_gpu.so.1"),
    *("/usr/share/vulkan/icd.d/*", "/etc/vulkan/icd.d/*", "/run/opengl-driver/share/vulkan/icd.d/*"),
    *(f"C:/Windows/System32/{name}.dll" for name in ("nvcuda", "amdhip64*", "ze_loader", "vulkan-1")),
)


def library_files() -> list[Path]:
    """The libraries that llama_cpp would load."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if not folder:
        package = sys.modules.get("llama_cpp")
        spec = package.__spec__ if package else find_spec("llama_cpp")
        if not spec or not spec.submodule_search_locations:
            return []
        folder = os.path.join(next(iter(spec.submodule_search_locations)), "lib")
    return sorted(path for path in Path(folder).glob("*") if _LIBRARY.search(path.name))


def installed_build() -> str:
    """A digest of the libraries by name, size and time: builds for CPU, CUDA and Vulkan have one version."""
    stats = [(path.name, found.st_size, found.st_mtime_ns) for path, found in _stats(library_files())]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]


def processor() -> str:
    """What this machine computes on: a build that works here may not work on another."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read(8192).split("\n\n")[0]  # the system writes it while it is read
    except OSError:
        return os.environ.get("PROCESSOR_IDENTIFIER") or str(getattr(os, "uname", lambda: "")())
    changing = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "apicid", "initial apicid", "core id")
    return "\n".join(line for line in first.splitlines() if line.split("\t")[0].strip() not in changing)


def driver() -> str:
    """The key of the GPU drivers: their files, the system's version, and the variables that control them."""
    paths = sorted(found for pattern in _DRIVER_FILES for found in glob(pattern))
    stats = [(os.path.realpath(path), it.st_size, it.st_mtime_ns) for path, it in _stats(map(Path, paths))]
    steering = sorted(
        (name, value) for name, value in os.environ.items() if name.startswith(("GGML_", "VK_"))
    )
    return repr((stats, platform.release(), platform.version(), steering))


def has_backend(name: str) -> bool:
    """Whether the installed libraries have this backend, one of BACKENDS."""
    return any(f"ggml-{name}" in path.name for path in library_files())


def rebuild_command(*options: str) -> str:
    """The command that builds llama-cpp-python on this machine, with its present backends and these cmake options."""
    present = (f"GGML_{name.upper()}=on" for name in BACKENDS if has_backend(name))
    return source_command(*dict.fromkeys([*present, *options]), windows=sys.platform == "win32")


def source_command(*options: str, windows: bool) -> str:
    """The command that builds llama-cpp-python from source with these cmake options."""
    build = f'pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "{LLAMA_CPP_PYTHON}"'
    defined = " ".join(f"-D{option}" for option in options)
    if not defined:
        return build
    return f'$env:CMAKE_ARGS = "{defined}"; {build}' if windows else f'CMAKE_ARGS="{defined}" {build}'


def _stats(paths: Iterable[Path]) -> Iterable[tuple[Path, os.stat_result]]:
    for path in paths:
        try:
            yield path, path.stat()
        except OSError:  # a link to nothing
            continue


# Names of devices that differ from their backend's.
_BACKEND_OF = {"mtl": "metal", "rocm": "hip"}


def missing_device(name: str, there: Iterable[str]) -> BadSetting:
    """An error that lists the devices, and how to get one of that kind."""
    hint = f"there are: {', '.join(there)}"
    word = re.match("[a-z]*", name.lower())
    kind = _BACKEND_OF.get(word[0], word[0]) if word else ""
    if kind in BACKENDS and not has_backend(kind):
        hint += f". This build has no {kind.upper()}: {rebuild_command(f'GGML_{kind.upper()}=on')}"
    elif kind == "rpc":
        hint += ". Devices of other machines come with --rpc HOST:PORT"
    return BadSetting(f"there is no device called {name}", hint=hint)
