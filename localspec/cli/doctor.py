"""`localspec doctor`: what llama.cpp can use here, and what to install when it could use more."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from localspec.cli.gpu_builds import find_gpu, install_command, this_machine
from localspec.cli.usage import Subparsers

if TYPE_CHECKING:
    from localspec.llama.devices import Device


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="show backend, devices and memory",
        description="Show the backend of the installed llama.cpp, its devices, and what would help.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec import api
    from localspec.compose import memory_of
    from localspec.models.devices import remember_devices

    backend, devices = api.backend(), api.devices()
    remember_devices(memory_of(devices))  # so that `pairs` and `info` know what fits here
    gpu = find_gpu()
    missing = gpu is not None and not backend.supports_gpu
    command = install_command(gpu, this_machine()) if gpu and missing else None
    if arguments.json:
        print(
            json.dumps(
                {
                    "backend": asdict(backend),
                    "devices": [asdict(device) for device in devices],
                    "gpu": asdict(gpu) if gpu else None,
                    "install": command,
                }
            )
        )
        return 0
    kind = "GPU" if backend.supports_gpu else "CPU"
    print(f"llama-cpp-python {backend.binding_version}, llama.cpp {backend.llama_version}, {kind} build")
    print(f"features: {backend.system_info}")
    for device in devices:
        print(f"{device.kind:<5} {device.name}: {device.description}, {gigabytes(device)}")
    if gpu and command:
        print(
            f"\n{gpu.vendor} GPU found ({gpu.name}), but this llama.cpp cannot use it. Install one that can:"
        )
        print(f"    {command}")
    elif not backend.supports_gpu:
        print("\nNo GPU was found: models run on the CPU.")
    return 0


def gigabytes(device: "Device") -> str:
    return f"{device.free_bytes / 1e9:.1f} of {device.total_bytes / 1e9:.1f} GB free"
