"""Check the installed llama.cpp: decode a few tokens on every device, and print the command that repairs each fault."""

import argparse
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from localspec.cli.options import WRONG_USAGE, add_option
from localspec.display import DrawnLine, say, say_json, tell
from localspec.errors import LocalspecError
from localspec.files import program
from localspec.llama.check import check, try_gpu
from localspec.machine.devices import Device, remember_devices
from localspec.machine.llama_build import LLAMA_CPP_PYTHON, source_command
from localspec.models.registry import unreadable_pairs
from localspec.options import given_settings

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
RELEASES = "https://github.com/ggml-org/llama.cpp/releases"
CUDA_WHEELS = ((11, 8), (12, 1), (12, 2), (12, 3), (12, 4), (12, 5), (13, 0), (13, 2))
FLAGS = {"NVIDIA": "GGML_CUDA", "AMD": "GGML_HIP", "Apple": "GGML_METAL", "Vulkan": "GGML_VULKAN"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "rpc")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    settings, mistakes = given_settings()
    mistakes += unreadable_pairs().values()
    rpc = arguments.rpc or (settings["rpc"].value if "rpc" in settings else "")
    with DrawnLine(sys.stderr) as stage:
        stage.draw("trying llama.cpp")
        health = check()  # tests the build in a child process, and raises an error if it crashes
        from localspec import api
        from localspec.llama.devices import connect

        if rpc:
            connect(rpc, stage.draw)
        backend, devices = api.backend(), api.devices()
        remember_devices(devices)  # for the memory plans of `pairs` and `info`
        found = [asdict(device) | problems_of(device, stage) for device in devices]
    features = " ".join(re.findall(r"(\w+) = 1\b", backend.system_info))
    gpu = find_gpu()
    missing = gpu if gpu and not backend.supports_gpu else None
    command = missing and install_command(missing, platform.system())
    archive = missing and official_archive(missing, platform.system(), platform.machine())
    if arguments.json:
        facts = {"note": health.notice, "mistakes": list(map(str, mistakes)), "gpu": gpu and asdict(gpu)}
        facts |= {"install": command, "archive": archive}
        say_json({"backend": asdict(backend), "devices": found, **facts})
        return WRONG_USAGE if mistakes else 0
    kind = "GPU" if backend.supports_gpu else "CPU"
    say(f"llama-cpp-python {backend.binding_version}, llama.cpp {backend.llama_version}, {kind} build")
    say(f"It is in {backend.build}, and is called like version {backend.layout}.")
    say(f"It uses these processor extensions: {features or 'none, not even AVX2'}.")
    for device, described in zip(devices, found, strict=True):
        say(f"{device.kind:<5} {about(device, described)}")
    if health.notice:
        say(f"\nllama.cpp crashed on weights repacked for this CPU ({health.died_of}), so models run slower.")
        say("Rebuild llama.cpp to repair it:")
        say(f"    {health.repair}")
    if gpu and command:
        say(f"\n{gpu.vendor} GPU found ({gpu.name}), but this llama.cpp cannot use it. Install one that can:")
        say(f"    {command}")
        say(f"Or, without a compiler: unpack {archive} from {RELEASES}; in config.toml set `llama` to it.")
    elif not any(device.is_gpu for device in devices):
        say("\nNo GPU was found: models run on the CPU.")
    for mistake in mistakes:
        tell(mistake)
    return WRONG_USAGE if mistakes else 0


def problems_of(device: Device, stage: DrawnLine) -> dict[str, str | None]:
    """Return the problem of a GPU, and that of its flash attention; None for each that works, and for a CPU."""
    problem = died_of = None
    if device.is_gpu:
        stage.draw(f"trying {device.name}: the first time, compiling GPU programs can take a minute")
        try:
            died_of = try_gpu(device.name, device.description).died_of or None
        except LocalspecError as error:
            problem = str(error)
    return {"problem": problem, "flash_attention_problem": died_of}


def about(device: Device, described: Mapping[str, Any]) -> str:
    memory = f"{device.free_bytes / 1e9:.1f} of {device.total_bytes / 1e9:.1f} GB free"
    state = f"fails: {described['problem']}" if described["problem"] else "works"
    if died := described["flash_attention_problem"]:
        state = f"works, but only without flash attention: with it llama.cpp crashes ({died})"
    return f"{device.name}: {device.description}, {memory}, {state}"


@dataclass(frozen=True, slots=True)
class Gpu:
    vendor: str  # a key of FLAGS
    name: str
    cuda: tuple[int, int] | None = None  # newest CUDA version that the driver supports


def find_gpu() -> Gpu | None:
    """Return the first GPU that its vendor's tool or the system reports; None without a GPU."""
    if platform.system() == "Darwin":
        return Gpu("Apple", platform.machine()) if platform.machine() == "arm64" else None
    if names := output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"):
        version = re.search(r"CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", output_of("nvidia-smi"))
        cuda = (int(version[1]), int(version[2])) if version else None
        return Gpu("NVIDIA", names.splitlines()[0].strip(), cuda)
    if card := re.search(r"Marketing Name:\s+(.*(?:Radeon|Instinct).*)", output_of("rocminfo")):
        return Gpu("AMD", card[1].strip())
    # Skip llvmpipe and SwiftShader, which render on the CPU and need no GPU build.
    drawn = r"deviceName\s*=\s*((?!.*(?:llvmpipe|SwiftShader)).+)"
    card = re.search(drawn, output_of("vulkaninfo", "--summary"))
    return Gpu("Vulkan", card[1].strip()) if card else None


def output_of(tool: str, *arguments: str) -> str:
    """Return the output of a tool; "" if the tool is missing, fails or hangs."""
    if (path := program(tool)) is None:
        return ""
    try:
        return subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def official_archive(gpu: Gpu, system: str, machine: str) -> str:
    """Return the name of llama.cpp's own archive for this GPU."""
    end = "arm64" if machine.lower() in ("arm64", "aarch64") else "x64"
    here = {"Linux": "ubuntu", "Windows": "win"}.get(system, "macos")
    cuda = f"cuda-{13 if gpu.cuda and gpu.cuda >= (13, 0) else 12}*-"
    kind = {"NVIDIA": cuda, "AMD": "rocm-*-", "Vulkan": "vulkan-", "Apple": ""}[gpu.vendor]
    archive = f"llama-*-bin-{here}-{kind}{end}"
    return f"{archive} and its cudart archive" if gpu.vendor == "NVIDIA" else archive


def install_command(gpu: Gpu, system: str) -> str:
    """Return the command that installs a build of llama-cpp-python for this GPU."""
    here = system in ("Linux", "Windows")
    usable = [version for version in CUDA_WHEELS if gpu.cuda and version <= gpu.cuda]
    wheels = {
        "NVIDIA": "cu{}{}".format(*usable[-1]) if usable and here else None,
        "AMD": {"Linux": "rocm72", "Windows": "hip-radeon"}.get(system),
        "Apple": "metal",
        "Vulkan": "vulkan" if here else None,
    }
    if index := wheels[gpu.vendor]:
        source = f"--only-binary llama-cpp-python --index-url {WHEELS}/{index}"
        return f'pip install --force-reinstall --no-deps {source} "{LLAMA_CPP_PYTHON}"'
    return source_command(f"{FLAGS[gpu.vendor]}=on", windows=system == "Windows")
