"""Check the installed llama.cpp: decode a few tokens on every device, and print the command that repairs each fault."""

import argparse
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from localspec.cli import CANCELLED, PROOF_SECONDS
from localspec.cli.options import WRONG_USAGE, add_option, number
from localspec.display import DrawnLine, counted, say, say_json, tell
from localspec.errors import BackendFailure, BadSetting, LocalspecError
from localspec.files import program
from localspec.health.check import check, try_gpu
from localspec.health.devices import Device, remember_devices
from localspec.health.installed import LLAMA_CPP_PYTHON, missing_device, source_command
from localspec.models.names import find
from localspec.options import given_settings

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
CUDA_WHEELS = ((11, 8), (12, 1), (12, 2), (12, 3), (12, 4), (12, 5), (13, 0), (13, 2))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "rpc")
    proof = parser.add_argument_group("a page about this machine, to send with a report").add_argument
    what = "print a page of Markdown: checks and times of one device, with the demo and with PAIR"
    proof("--prove", nargs="?", const="", metavar="PAIR", help=what)
    proof("--on", metavar="DEVICE", help="the device (default: the first GPU, else the CPU)")
    limit = f"end after about S seconds (default: {PROOF_SECONDS:g}); the command resumes on the same day"
    proof("--seconds", type=number(float, 0), default=PROOF_SECONDS, metavar="S", help=limit)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if arguments.on and arguments.prove is None:
        raise BadSetting("--on goes with --prove", hint=f"localspec doctor --prove --on {arguments.on}")
    settings, mistakes = given_settings()
    if mistakes and arguments.prove is not None:
        raise mistakes[0]
    if arguments.prove:
        find(arguments.prove)  # raises
    rpc = arguments.rpc or (settings["rpc"].value if "rpc" in settings else "")
    with DrawnLine(sys.stderr) as stage:
        stage.draw("trying llama.cpp")
        note = check().note  # raises before this process loads a build that would kill it
        from localspec import api
        from localspec.models.load import connect

        if rpc:
            connect(rpc, stage.draw)
        backend, devices = api.backend(), api.devices()
        remember_devices(devices)  # so that `pairs` and `info` know what fits here
        found = [asdict(device) | problems_of(device, stage) for device in devices]
    features = " ".join(re.findall(r"(\w+) = 1\b", backend.system_info))
    gpu = find_gpu()
    command = install_command(gpu, platform.system()) if gpu and not backend.supports_gpu else None
    if arguments.json:
        say_json(
            {"backend": asdict(backend), "devices": found, "note": note, "mistakes": list(map(str, mistakes))}
            | {"gpu": asdict(gpu) if gpu else None, "install": command}
        )
        return WRONG_USAGE if mistakes else 0
    if arguments.prove is not None:
        return prove(arguments, devices, found, rpc, features)
    kind = "GPU" if backend.supports_gpu else "CPU"
    say(f"llama-cpp-python {backend.binding_version}, llama.cpp {backend.llama_version}, {kind} build")
    say(f"This llama.cpp uses {features or 'no special instructions'}.")
    for device, described in zip(devices, found, strict=True):
        say(f"{device.kind:<5} {about(device, described)}")
    if note:
        say(f"\n{note[0].upper()}{note[1:]}")
    if gpu and command:
        said = f"{gpu.vendor} GPU found ({gpu.name}), but this llama.cpp cannot use it. Install one that can:"
        say(f"\n{said}\n    {command}")
    elif not any(device.is_gpu for device in devices):
        say("\nNo GPU was found: models run on the CPU.")
    for mistake in mistakes:
        tell(mistake)
    return WRONG_USAGE if mistakes else 0


def about(device: Device, described: Mapping[str, Any]) -> str:
    """A device, its memory, and whether it works."""
    memory = f"{device.free_bytes / 1e9:.1f} of {device.total_bytes / 1e9:.1f} GB free"
    state = f"fails: {described['problem']}" if described["problem"] else "works"
    if died := described["flash_attention_problem"]:
        state = f"works without flash attention, which ends llama.cpp there ({died})"
    return f"{device.name}: {device.description}, {memory}, {state}"


def prove(
    arguments: argparse.Namespace,
    devices: Sequence[Device],
    found: Sequence[Mapping[str, Any]],
    rpc: str,
    features: str,
) -> int:
    """Print the page; Ctrl-C prints what is known. Raises BadSetting, BackendFailure."""
    from localspec.cli.proof import Prover
    from localspec.measure.summary import this_machine

    names = [device.name for device in devices]
    first = next((device.name for device in devices if device.is_gpu), "CPU")
    if (wanted := arguments.on or first) not in names:
        raise missing_device(wanted, names)
    device, described = devices[names.index(wanted)], found[names.index(wanted)]
    if described["problem"]:
        raise BackendFailure(f"{wanted} does not work: {described['problem']}", hint="try --on CPU")
    machine, flash = this_machine(), not described["flash_attention_problem"]
    there = {
        "device": about(device, described),
        "driver": driver_version(device.backend),
        "CPU": f"{counted(machine.threads, 'thread')} on {counted(machine.cores, 'core')}; {features}",
        "all devices": ", ".join(machine.devices) if len(devices) > 1 else "",
        "system": f"{platform.platform()}, Python {machine.python}",
        "software": f"localspec {machine.localspec}, llama-cpp-python {machine.llama_cpp_python} "
        f"(llama.cpp {machine.llama_cpp})",
        "day": machine.measured_at[:10],
    }
    there = {name: told for name, told in there.items() if told}
    prover = Prover(device, rpc, arguments.prove, arguments.seconds, machine, there, flash=flash)
    stopped = False
    try:
        with DrawnLine(sys.stderr) as line:
            prover.run(line)
    except KeyboardInterrupt:
        stopped = True
    say(prover.page(), wrap=False)
    return CANCELLED if stopped else 0


def problems_of(device: Device, stage: DrawnLine) -> dict[str, str | None]:
    """Why a GPU is unusable, or unusable with flash attention; None for no problem. The CPU decoded already."""
    problem = died_of = None
    if device.is_gpu:
        stage.draw(f"trying {device.name}: the first time, compiling its programs can take a minute")
        try:
            died_of = try_gpu(device.name, device.description).died_of or None
        except LocalspecError as error:
            problem = str(error)
    return {"problem": problem, "flash_attention_problem": died_of}


class Vendor(StrEnum):
    NVIDIA = "NVIDIA"
    AMD = "AMD"
    APPLE = "Apple"
    VULKAN = "Vulkan"


_FLAGS = dict(zip(Vendor, ("GGML_CUDA", "GGML_HIP", "GGML_METAL", "GGML_VULKAN"), strict=True))


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics card that the system reports."""

    vendor: Vendor
    name: str
    cuda: tuple[int, int] | None = None  # the newest CUDA that its driver supports


def find_gpu() -> Gpu | None:
    """The first GPU that the vendor's own tool or the system reports; None when there is none."""
    if platform.system() == "Darwin":
        return Gpu(Vendor.APPLE, platform.machine()) if platform.machine() == "arm64" else None
    # llvmpipe and SwiftShader draw on the CPU: no reason for a GPU build.
    drawn = r"deviceName\s*=\s*((?!.*(?:llvmpipe|SwiftShader)).+)"
    return (
        find_nvidia()
        or find_with("rocminfo", Vendor.AMD, r"Marketing Name:\s+(.*(?:Radeon|Instinct).*)")
        or find_with("vulkaninfo", Vendor.VULKAN, drawn, "--summary")
    )


def find_nvidia() -> Gpu | None:
    names = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    version = re.search(r"CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", output_of("nvidia-smi")) if names else None
    cuda = (int(version[1]), int(version[2])) if version else None
    return Gpu(Vendor.NVIDIA, names.splitlines()[0].strip(), cuda) if names else None


def find_with(tool: str, vendor: Vendor, pattern: str, *arguments: str) -> Gpu | None:
    found = re.search(pattern, output_of(tool, *arguments))
    return Gpu(vendor, found[1].strip()) if found else None


def output_of(tool: str, *arguments: str) -> str:
    """The output of a tool; "" when it is missing, fails or hangs."""
    if (path := program(tool)) is None:
        return ""
    try:
        return subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def driver_version(backend: str) -> str:
    """As the vendor's tool reports it; "" where none does."""
    if backend == "CUDA":
        return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    told = output_of("vulkaninfo", "--summary") if backend == "Vulkan" else ""
    return ", ".join(re.findall(r"driverInfo\s*=\s*(.+)", told))


def install_command(gpu: Gpu, system: str) -> str:
    """The exact command that replaces the installed llama-cpp-python by a build for this GPU."""
    if index := wheel_index(gpu, system):
        source = f"--only-binary llama-cpp-python --index-url {WHEELS}/{index}"
        return f'pip install --force-reinstall --no-deps {source} "{LLAMA_CPP_PYTHON}"'
    return source_command(f"{_FLAGS[gpu.vendor]}=on", windows=system == "Windows")


def wheel_index(gpu: Gpu, system: str) -> str | None:
    """The folder of the published wheels that fit; None if only a build from source fits."""
    if gpu.vendor is Vendor.NVIDIA:
        usable = [version for version in CUDA_WHEELS if gpu.cuda and version <= gpu.cuda]
        return "cu{}{}".format(*usable[-1]) if usable and system in ("Linux", "Windows") else None
    if gpu.vendor is Vendor.AMD:
        return {"Linux": "rocm72", "Windows": "hip-radeon"}.get(system)
    if gpu.vendor is Vendor.APPLE:
        return "metal"
    return "vulkan" if system in ("Linux", "Windows") else None
