"""Which GPU this machine has, asked without llama.cpp, and the command that installs a build for it."""

import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum

from localspec.files import program
from localspec.health.build import LLAMA_CPP_PYTHON, source_command

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
CUDA_WHEELS = ((11, 8), (12, 1), (12, 2), (12, 3), (12, 4), (12, 5), (13, 0), (13, 2))
WHEEL_PYTHONS = ((3, 10), (3, 11), (3, 12))  # the published wheels are for these


class Vendor(StrEnum):
    NVIDIA = "NVIDIA"
    AMD = "AMD"
    APPLE = "Apple"
    VULKAN = "Vulkan"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics card that the system reports."""

    vendor: Vendor
    name: str
    cuda: tuple[int, int] | None = None  # the newest CUDA that its driver supports


@dataclass(frozen=True, slots=True)
class Platform:
    system: str  # as platform.system() says: Linux, Darwin, Windows
    python: tuple[int, int]


def this_machine() -> Platform:
    return Platform(platform.system(), sys.version_info[:2])


def find_gpu() -> Gpu | None:
    """The first GPU that the vendor's own tool or the system reports; None when there is none."""
    if platform.system() == "Darwin":
        return Gpu(Vendor.APPLE, platform.machine()) if platform.machine() == "arm64" else None
    return (
        find_nvidia()
        or find_with("rocminfo", Vendor.AMD, r"Marketing Name:\s+(.*(?:Radeon|Instinct).*)")
        or find_vulkan()
    )


def find_nvidia() -> Gpu | None:
    names = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if not names:
        return None
    version = re.search(r"CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", output_of("nvidia-smi"))
    cuda = (int(version[1]), int(version[2])) if version else None
    return Gpu(Vendor.NVIDIA, names.splitlines()[0].strip(), cuda)


def find_vulkan() -> Gpu | None:
    # llvmpipe and SwiftShader draw on the CPU: no reason for a GPU build.
    return find_with(
        "vulkaninfo", Vendor.VULKAN, r"deviceName\s*=\s*((?!.*(?:llvmpipe|SwiftShader)).+)", "--summary"
    )


def find_with(tool: str, vendor: Vendor, pattern: str, *arguments: str) -> Gpu | None:
    found = re.search(pattern, output_of(tool, *arguments))
    return Gpu(vendor, found[1].strip()) if found else None


def output_of(tool: str, *arguments: str) -> str:
    """What a tool prints; nothing when it is missing, fails or hangs."""
    path = program(tool)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def install_command(gpu: Gpu, machine: Platform) -> str:
    """The exact command that replaces the installed llama-cpp-python by a build for this GPU."""
    index = wheel_index(gpu, machine)
    if index and machine.python in WHEEL_PYTHONS:
        source = f"--only-binary llama-cpp-python --index-url {WHEELS}/{index}"
        return f'pip install --force-reinstall --no-deps {source} "{LLAMA_CPP_PYTHON}"'
    flag = {
        Vendor.NVIDIA: "GGML_CUDA",
        Vendor.AMD: "GGML_HIP",
        Vendor.APPLE: "GGML_METAL",
        Vendor.VULKAN: "GGML_VULKAN",
    }
    return source_command(f"{flag[gpu.vendor]}=on", windows=machine.system == "Windows")


def wheel_index(gpu: Gpu, machine: Platform) -> str | None:
    """The folder of the published wheels that fit; None where the build must come from source."""
    if gpu.vendor is Vendor.NVIDIA:
        usable = [version for version in CUDA_WHEELS if gpu.cuda and version <= gpu.cuda]
        return "cu{}{}".format(*usable[-1]) if usable and machine.system in ("Linux", "Windows") else None
    if gpu.vendor is Vendor.AMD:
        return {"Linux": "rocm72", "Windows": "hip-radeon"}.get(machine.system)
    if gpu.vendor is Vendor.APPLE:
        return "metal"
    return "vulkan" if machine.system in ("Linux", "Windows") else None
