"""`localspec doctor`: whether the installed llama.cpp works here, on what, and what to install if it could do more."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.cli.options import add_rpc_option
from localspec.cli.printing import DrawnLine, say, say_json
from localspec.cli.usage import Subparsers

if TYPE_CHECKING:
    from localspec.errors import LocalspecError
    from localspec.health.gpu import GpuHealth
    from localspec.llama.devices import BackendSummary, Device


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="try the backend and every device",
        description="Decode a few tokens on every device of the installed llama.cpp, each in a process of its own, "
        "and show what would help.",
    )
    add_rpc_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.cli.gpu_builds import find_gpu, install_command, this_machine
    from localspec.health.check import check

    with DrawnLine(sys.stderr) as stage:
        stage.draw("trying llama.cpp")
        note = check().note  # raises before this process loads a build that would kill it
        from localspec import api
        from localspec.compose import connect, memory_of
        from localspec.memory.known_devices import remember_devices
        from localspec.settings import Settings

        if rpc := Settings.load(rpc=arguments.rpc).rpc:
            connect(rpc, stage.draw)
        backend, devices = api.backend(), api.devices()
        remember_devices(memory_of(devices))  # so that `pairs` and `info` know what fits here
        states = {device.name: state_of(device, stage) for device in devices}
    gpu = find_gpu()
    missing = gpu is not None and not backend.supports_gpu
    command = install_command(gpu, this_machine()) if gpu and missing else None
    if arguments.json:
        say_json(
            {
                "backend": asdict(backend),
                "devices": [as_json(device, states[device.name]) for device in devices],
                "note": note,
                "gpu": asdict(gpu) if gpu else None,
                "install": command,
            }
        )
        return 0
    tell(backend, devices, states)
    if note:
        say(f"\n{note[0].upper()}{note[1:]}")
    if gpu and command:
        say(f"\n{gpu.vendor} GPU found ({gpu.name}), but this llama.cpp cannot use it. Install one that can:")
        say(f"    {command}")
    elif not any(device.is_gpu for device in devices):
        say("\nNo GPU was found: models run on the CPU.")
    return 0


def state_of(device: "Device", stage: DrawnLine) -> "GpuHealth | LocalspecError | None":
    """How a GPU can be used, or why it cannot be; None for the CPU, which has decoded already."""
    from localspec.errors import LocalspecError
    from localspec.health.gpu import try_gpu

    if not device.is_gpu:
        return None
    stage.draw(f"trying {device.name}: where its programs are compiled this takes a minute")
    try:
        return try_gpu(device.name, device.description)
    except LocalspecError as error:
        return error


def tell(
    backend: "BackendSummary",
    devices: "list[Device]",
    states: "dict[str, GpuHealth | LocalspecError | None]",
) -> None:
    kind = "GPU" if backend.supports_gpu else "CPU"
    say(f"llama-cpp-python {backend.binding_version}, llama.cpp {backend.llama_version}, {kind} build")
    say(f"features: {backend.system_info}")
    for device in devices:
        say(f"{device.kind:<5} {device.name}: {device.description}, {gigabytes(device)}, ", end="")
        found = as_json(device, states[device.name])
        if found["problem"]:
            say(f"fails: {found['problem']}")
        elif found["flash_attention_problem"]:
            say(
                f"works without flash attention, which ends llama.cpp there ({found['flash_attention_problem']})"
            )
        else:
            say("works")


def as_json(device: "Device", state: "GpuHealth | LocalspecError | None") -> dict[str, Any]:
    """The device with what is wrong with it, None where nothing is."""
    from localspec.errors import LocalspecError

    failed = isinstance(state, LocalspecError)
    dies_of = None if state is None or isinstance(state, LocalspecError) else state.died_of or None
    return asdict(device) | {"problem": str(state) if failed else None, "flash_attention_problem": dies_of}


def gigabytes(device: "Device") -> str:
    return f"{device.free_bytes / 1e9:.1f} of {device.total_bytes / 1e9:.1f} GB free"
