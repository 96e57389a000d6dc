"""`localspec doctor`: backend, devices and the command for a GPU."""

import json
import sys

import pytest

from localspec.cli import main
from localspec.cli.commands.doctor import Gpu, find_gpu, install_command, official_archive

pytestmark = pytest.mark.usefixtures("home")

LINUX = "Linux"


@pytest.mark.process
def test_doctor_names_the_backend_and_the_devices_with_their_memory(capsys):
    assert main(["doctor"]) == 0
    out, _ = capsys.readouterr()
    assert "llama-cpp-python 0.3." in out
    assert "GB free" in out
    commands = [line for line in out.splitlines() if "CMAKE_ARGS=" in line]  # stay on a line, to be copied
    assert max(len(line) for line in out.splitlines() if line not in commands) < 200
    assert " = 1" not in out


@pytest.mark.process
def test_doctor_as_json(capsys):
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"version", "backend", "devices", "note", "mistakes", "gpu", "install", "archive"} == set(found)
    assert found["devices"][0]["total_bytes"] > 0


@pytest.mark.parametrize(
    ("gpu", "machine", "expected"),
    [
        (Gpu("NVIDIA", "RTX 3060", (12, 4)), LINUX, "/whl/cu124"),
        (Gpu("NVIDIA", "RTX 3060", (12, 9)), LINUX, "/whl/cu125"),
        (Gpu("NVIDIA", "RTX 5090", (13, 1)), "Windows", "/whl/cu130"),
        (Gpu("AMD", "Radeon RX 7900"), LINUX, "/whl/rocm72"),
        (Gpu("AMD", "Radeon RX 7900"), "Windows", "/whl/hip-radeon"),
        (Gpu("Apple", "arm64"), "Darwin", "/whl/metal"),
        (Gpu("Vulkan", "Arc B580"), LINUX, "/whl/vulkan"),
        (Gpu("NVIDIA", "GTX 680", (10, 2)), LINUX, 'CMAKE_ARGS="-DGGML_CUDA=on"'),
        (Gpu("NVIDIA", "GTX 680"), "Windows", '$env:CMAKE_ARGS = "-DGGML_CUDA=on"'),
    ],
)
def test_the_command_installs_a_build_for_this_gpu(gpu, machine, expected):
    command = install_command(gpu, machine)
    assert expected in command
    assert "--force-reinstall --no-deps" in command, "a build of the same version must be replaced"
    assert "--extra-index-url" not in command, (
        "of two indexes the higher version would win, whoever put it there"
    )


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in tools are shell scripts")
def test_gpus_are_found_by_the_tools_of_their_vendors(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpu() is None
    tool(tmp_path / "vulkaninfo", "deviceName = llvmpipe (LLVM 15)")
    assert find_gpu() is None
    tool(tmp_path / "vulkaninfo", "deviceName = llvmpipe\ndeviceName = Intel Arc B580")
    assert find_gpu() == Gpu("Vulkan", "Intel Arc B580")
    tool(tmp_path / "nvidia-smi", "NVIDIA GeForce RTX 3060\n| CUDA Version: 12.4  |")
    assert find_gpu() == Gpu("NVIDIA", "NVIDIA GeForce RTX 3060", (12, 4))
    tool(tmp_path / "nvidia-smi", "no driver", code=9)
    assert find_gpu() == Gpu("Vulkan", "Intel Arc B580")


def tool(path, prints, code=0):
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("gpu", "system", "machine", "archive"),
    [
        (Gpu("NVIDIA", "A", (13, 1)), "Linux", "x86_64", "ubuntu-cuda-13*-x64 and its cudart archive"),
        (Gpu("NVIDIA", "A"), "Windows", "AMD64", "win-cuda-12*-x64 and its cudart archive"),
        (Gpu("AMD", "A"), "Linux", "x86_64", "ubuntu-rocm-*-x64"),
        (Gpu("Vulkan", "A"), "Linux", "aarch64", "ubuntu-vulkan-arm64"),
        (Gpu("Apple", "A"), "Darwin", "arm64", "macos-arm64"),
    ],
)
def test_the_archive_of_llama_cpp_that_uses_a_gpu_is_named(gpu, system, machine, archive):
    assert official_archive(gpu, system, machine) == f"llama-*-bin-{archive}"
