"""Check the installed llama.cpp: decode a few tokens on every device, and print the command that repairs each fault."""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from localspec import demo
from localspec.cli import CANCELLED
from localspec.cli.options import WRONG_USAGE, add_option
from localspec.display import DrawnLine, counted, say, say_json, tell
from localspec.errors import BackendFailure, BadSetting, LocalspecError
from localspec.files import program
from localspec.llama.check import check, try_gpu
from localspec.machine.children import describe_exit, environment_of_child
from localspec.machine.devices import Device, remember_devices
from localspec.machine.llama_build import LLAMA_CPP_PYTHON, missing_device, source_command
from localspec.models.names import find
from localspec.models.registry import unreadable_pairs
from localspec.options import given_settings

if TYPE_CHECKING:
    from localspec.measure.device_report import ReportRow

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
RELEASES = "https://github.com/ggml-org/llama.cpp/releases"
CUDA_WHEELS = ((11, 8), (12, 1), (12, 2), (12, 3), (12, 4), (12, 5), (13, 0), (13, 2))
FLAGS = {"NVIDIA": "GGML_CUDA", "AMD": "GGML_HIP", "Apple": "GGML_METAL", "Vulkan": "GGML_VULKAN"}
SECONDS = {"logits": 40.0, "verify": 90.0, "speed": 120.0}  # time limit of each part of --prove
WORKING = 0.55  # share of the time limit for measuring; the rest is for loading
CHILD = (sys.executable, "-P", "-m", "localspec.measure.device_report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "rpc")
    proof = parser.add_argument_group("a page about this machine, to send with a report").add_argument
    what = "print a page of Markdown: checks and times of one device, with the demo and with PAIR"
    proof("--prove", nargs="?", const="", metavar="PAIR", help=what)
    proof("--on", metavar="DEVICE", help="the device (default: the first GPU, else the CPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if arguments.on and arguments.prove is None:
        raise BadSetting("--on needs --prove", hint=f"localspec doctor --prove --on {arguments.on}")
    settings, mistakes = given_settings()
    if mistakes and arguments.prove is not None:
        raise mistakes[0]
    mistakes += unreadable_pairs().values()
    if arguments.prove:
        find(arguments.prove)  # raises for an unknown pair
    rpc = arguments.rpc or (settings["rpc"].value if "rpc" in settings else "")
    with DrawnLine(sys.stderr) as stage:
        stage.draw("trying llama.cpp")
        health = check()  # tries the build in a child process, and raises if it crashes
        from localspec import api
        from localspec.llama.devices import connect

        if rpc:
            connect(rpc, stage.draw)
        backend, devices = api.backend(), api.devices()
        remember_devices(devices)  # for the memory plans of `pairs` and `info`
        found = [asdict(device) | problems_of(device, stage) for device in devices]
    features = " ".join(re.findall(r"(\w+) = 1\b", backend.system_info))
    if arguments.prove is not None:
        return prove(arguments, devices, found, rpc, features)
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
    say(f"It is in {backend.build}, with parameters as in version {backend.layout}.")
    say(f"This llama.cpp uses {features or 'no processor extensions, such as AVX2'}.")
    for device, described in zip(devices, found, strict=True):
        say(f"{device.kind:<5} {about(device, described)}")
    if health.notice:
        say(f"\nllama.cpp crashed with repacked weights ({health.died_of}). Rebuild it to use them again:")
        say(f"    {health.repair}")
    if gpu and command:
        say(f"\n{gpu.vendor} GPU found ({gpu.name}), but this llama.cpp cannot use it. Install one that can:")
        say(f"    {command}")
        say(f"Or, without a compiler: unpack {archive} from {RELEASES}, and set llama to its folder.")
    elif not any(device.is_gpu for device in devices):
        say("\nNo GPU was found: models run on the CPU.")
    for mistake in mistakes:
        tell(mistake)
    return WRONG_USAGE if mistakes else 0


def problems_of(device: Device, stage: DrawnLine) -> dict[str, str | None]:
    """Return the problem of a GPU and the problem of its flash attention; None if it has no problem or is a CPU."""
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


def prove(
    arguments: argparse.Namespace,
    devices: Sequence[Device],
    found: Sequence[Mapping[str, Any]],
    rpc: str,
    features: str,
) -> int:
    """Check and measure a device; print the results, also after Ctrl-C. Raises LocalspecError."""
    from localspec.cli.commands.demo import enlarged
    from localspec.measure.device_report import ReportRow
    from localspec.measure.summary import this_machine

    names = [device.name for device in devices]
    name = arguments.on or next((device.name for device in devices if device.is_gpu), "CPU")
    if name not in names:
        raise missing_device(name, names)
    device, described = devices[names.index(name)], found[names.index(name)]
    if described["problem"]:
        raise BackendFailure(f"{name} does not work: {described['problem']}", hint="try --on CPU")
    part = {"device": name, "demo": str(demo.target_path()), "rpc": rpc}
    part |= {"flash": not described["flash_attention_problem"]}
    facts = {"device": about(device, described), "driver": driver_version(device.backend)}
    facts |= {"instructions": features, "machine": this_machine().sentence()}
    rows, code, pair = list[ReportRow](), 0, arguments.prove
    try:
        with DrawnLine(sys.stderr) as line:
            load = {"pair": "demo"}
            for kind in ("logits", "verify"):
                measure(kind, {**part, "name": kind, "load": load}, rows, line)
            try:
                target, draft = map(str, enlarged(line.draw))
                load = {"target": target, "draft": draft}
            except (OSError, LocalspecError) as error:
                rows.append(ReportRow("models of the speeds", f"the small demo: {error}"))
            measure("speed", {**part, "name": "speed", "load": load}, rows, line)
            for kind in ("verify", "speed") if pair else ():
                measure(f"{pair}: {kind}", {**part, "name": kind, "load": {"pair": pair}}, rows, line)
    except KeyboardInterrupt:
        code = CANCELLED
    if arguments.json:
        say_json({**facts, "rows": [asdict(row) for row in rows]})
    else:
        say(page(name, facts, rows), wrap=False)
    return code


def measure(title: str, part: dict[str, Any], rows: "list[ReportRow]", line: DrawnLine) -> None:
    """Measure a part in a child process, because a GPU driver may crash it or hang; add to `rows`."""
    from localspec.measure.device_report import ReportRow

    seconds = SECONDS[part["name"]]
    line.tell(f"{title} on {part['device']}: {seconds:.0f} s at most", title)
    command = [*CHILD, json.dumps(part | {"seconds": seconds * WORKING})]
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=errors, env=environment_of_child()
        ) as child,
    ):
        code, cut = 0, "stopped by Ctrl-C"
        try:
            code, cut = child.wait(seconds), ""
        except subprocess.TimeoutExpired:
            cut = f"stopped after {seconds:.0f} s"
        finally:
            child.kill()
            child.wait()
            output.seek(0)
            rows += [ReportRow(**json.loads(text)) for text in output if text.rstrip().endswith(b"}")]
            if cut:
                rows.append(ReportRow(title, cut, missing=True))
        if code:
            errors.seek(0)
            last = " ".join(errors.read().decode("utf-8", "replace").split("\n")[-3:])
            rows.append(ReportRow(title, f"{describe_exit(code)}. {last}".strip(), passed=False))


def page(device: str, facts: Mapping[str, str], rows: "Sequence[ReportRow]") -> str:
    failed = counted(sum(row.passed is False for row in rows), "check")
    lacking = counted(sum(row.missing for row in rows), "row")
    head = [f"# `localspec doctor --prove` on {device}", f"{failed} failed, {lacking} incomplete."]
    about_it = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items() if value)]
    table = ["| | measured | needed | |", "|---|---|---|---|"]
    for row in rows:
        state = {True: "passed", False: "FAILED", None: "incomplete" * row.missing}[row.passed]
        table.append(f"| {row.what} | {row.measured} | {row.needed} | {state} |")
    return "\n\n".join([*head, "\n".join(about_it), "\n".join(table)])


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
    # llvmpipe and SwiftShader render on the CPU, so they need no GPU build.
    drawn = r"deviceName\s*=\s*((?!.*(?:llvmpipe|SwiftShader)).+)"
    card = re.search(drawn, output_of("vulkaninfo", "--summary"))
    return Gpu("Vulkan", card[1].strip()) if card else None


def output_of(tool: str, *arguments: str) -> str:
    """Return the output of a tool; "" if it is missing, fails or hangs."""
    if (path := program(tool)) is None:
        return ""
    try:
        return subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def driver_version(backend: str) -> str:
    """Return the version of a backend's GPU driver; "" if no tool reports it."""
    if backend == "CUDA":
        return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    summary = output_of("vulkaninfo", "--summary") if backend == "Vulkan" else ""
    return ", ".join(re.findall(r"driverInfo\s*=\s*(.+)", summary))


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
