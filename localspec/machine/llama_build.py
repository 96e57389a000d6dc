"""Facts about the llama.cpp in use, without loading it: the one of the setting `llama`, else the installed one."""

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from localspec import options
from localspec.errors import BadSetting
from localspec.files import expanded

LLAMA_CPP_PYTHON = "llama-cpp-python>=0.3.36,<0.4"
_LIBRARY = re.compile(r"\.(so|dylib|dll)[.\d]*$")
# Backends that a build may have; every build has the CPU backend.
BACKENDS = ("cuda", "hip", "metal", "musa", "rpc", "sycl", "vulkan")
# The files that a driver update replaces: one for each of CUDA, HIP, Level Zero and Vulkan.
_DRIVER_FILES = (
    *("/usr/lib*/libcuda.so.1", "/usr/lib/*/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"),
    *("/run/opengl-driver/lib/libcuda.so.1", "/opt/rocm/.info/version", "/usr/lib/*/libze_intel_gpu.so.1"),
    *("/usr/share/vulkan/icd.d/*", "/etc/vulkan/icd.d/*", "/run/opengl-driver/share/vulkan/icd.d/*"),
    *(f"C:/Windows/System32/{name}.dll" for name in ("nvcuda", "amdhip64*", "ze_loader", "vulkan-1")),
)


def chosen_folder() -> Path | None:
    """Return the folder of the setting `llama`; None if it is not set. Raises BadSetting."""
    given = options.given_settings()[0].get("llama")
    return expanded(given.value).absolute() if given and given.value else None


def bindings_folder() -> Path | None:
    package = sys.modules.get("llama_cpp")
    spec = package.__spec__ if package else find_spec("llama_cpp")
    found = spec.submodule_search_locations if spec else None
    return Path(next(iter(found))) if found else None


def library_files() -> list[Path]:
    """Return the libraries of llama.cpp. The folder of the setting `llama` may have them in subfolders."""
    if chosen := chosen_folder():
        found = [*chosen.glob("*"), *chosen.glob("*/*")]
    else:
        own, bindings = os.environ.get("LLAMA_CPP_LIB_PATH"), bindings_folder()
        folder = Path(own) if own else bindings and bindings / "lib"
        found = [*folder.glob("*")] if folder else []
    return sorted(path for path in found if _LIBRARY.search(path.name))


def chosen_libraries(folder: Path) -> dict[str, Path]:
    """Return libllama, and libggml and libmtmd if the folder has them, by name. Raises BadSetting."""
    libraries = dict[str, Path]()
    for name in ("ggml", "mtmd", "llama"):
        files = [path for path in library_files() if re.match(rf"(lib)?{name}[\d.]*\.", path.name)]
        files = [path for path in files if path.is_file()]
        if len({path.parent for path in files}) > 1:
            what = f"{folder} holds several builds of llama.cpp"
            raise BadSetting(what, hint=f"set llama to one of their folders: {files[0].parent}")
        # Other libraries load a library by its name with one number, as libggml.so.0.
        if files:
            libraries[name] = min(files, key=lambda at: (not re.search(r"\.so\.\d+$", at.name), len(at.name)))
    if "llama" not in libraries:
        what = f"{folder} holds no llama.cpp, because the library llama is missing"
        hint = "set llama to the folder that an official archive of llama.cpp was unpacked into"
        raise BadSetting(what if folder.is_dir() else f"there is no folder {folder}", hint=hint)
    return libraries


def installed_build() -> str:
    """Return a key of the build in use, from the names, sizes and times of its library files."""
    stats = [(path.name, found.st_size, found.st_mtime_ns) for path, found in _stats(library_files())]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]


def processor() -> str:
    """Return a key of the processor, because a build that works on one may crash on another."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read(8192).split("\n\n")[0]  # the first core shows the type of the processor
    except OSError:
        return os.environ.get("PROCESSOR_IDENTIFIER") or str(getattr(os, "uname", lambda: "")())
    changing = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "apicid", "initial apicid", "core id")
    return "\n".join(line for line in first.splitlines() if line.split("\t")[0].strip() not in changing)


def driver() -> str:
    """Return a key of the GPU drivers, from their files, environment variables and the system's version."""
    paths = sorted(found for pattern in _DRIVER_FILES for found in glob(pattern))
    stats = [(os.path.realpath(path), it.st_size, it.st_mtime_ns) for path, it in _stats(map(Path, paths))]
    steering = sorted(
        (name, value) for name, value in os.environ.items() if name.startswith(("GGML_", "VK_"))
    )
    return repr((stats, platform.release(), platform.version(), steering))


def has_backend(name: str) -> bool:
    """Return whether the installed llama.cpp has the backend `name`, one of BACKENDS."""
    return any(f"ggml-{name}" in path.name for path in library_files())


def rebuild_command(*options: str) -> str:
    """Return the command that rebuilds llama-cpp-python with its present backends and cmake `options`."""
    present = (f"GGML_{name.upper()}=on" for name in BACKENDS if has_backend(name))
    return source_command(*dict.fromkeys([*present, *options]), windows=sys.platform == "win32")


def source_command(*options: str, windows: bool) -> str:
    build = f'pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python "{LLAMA_CPP_PYTHON}"'
    defined = " ".join(f"-D{option}" for option in options)
    if not defined:
        return build
    return f'$env:CMAKE_ARGS = "{defined}"; {build}' if windows else f'CMAKE_ARGS="{defined}" {build}'


def _stats(paths: Iterable[Path]) -> Iterable[tuple[Path, os.stat_result]]:
    for path in paths:
        try:
            yield path, path.stat()
        except OSError:  # the path may be a link to a missing file
            continue
