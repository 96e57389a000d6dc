"""`localspec doctor` names backend and devices, and the exact command for a GPU that the build cannot use."""

import json
import sys

import pytest

from localspec.cli import main
from localspec.cli.commands.doctor import Gpu, Vendor, driver_version, find_gpu, install_command

LINUX = "Linux"


def test_doctor_names_the_backend_and_the_devices_with_their_memory(capsys):
    assert main(["doctor"]) == 0
    out, _ = capsys.readouterr()
    assert "llama-cpp-python 0.3." in out
    assert "GB free" in out
    assert max(map(len, out.splitlines())) < 200
    assert " = 1" not in out


def test_doctor_as_json(capsys):
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"version", "backend", "devices", "note", "mistakes", "gpu", "install"} == set(found)
    assert found["devices"][0]["total_bytes"] > 0


@pytest.mark.parametrize(
    ("gpu", "machine", "expected"),
    [
        (Gpu(Vendor.NVIDIA, "RTX 3060", (12, 4)), LINUX, "/whl/cu124"),
        (Gpu(Vendor.NVIDIA, "RTX 3060", (12, 9)), LINUX, "/whl/cu125"),
        (Gpu(Vendor.NVIDIA, "RTX 5090", (13, 1)), "Windows", "/whl/cu130"),
        (Gpu(Vendor.AMD, "Radeon RX 7900"), LINUX, "/whl/rocm72"),
        (Gpu(Vendor.AMD, "Radeon RX 7900"), "Windows", "/whl/hip-radeon"),
        (Gpu(Vendor.APPLE, "arm64"), "Darwin", "/whl/metal"),
        (Gpu(Vendor.VULKAN, "Arc B580"), LINUX, "/whl/vulkan"),
        (Gpu(Vendor.NVIDIA, "GTX 680", (10, 2)), LINUX, 'CMAKE_ARGS="-DGGML_CUDA=on"'),
        (Gpu(Vendor.NVIDIA, "GTX 680"), "Windows", '$env:CMAKE_ARGS = "-DGGML_CUDA=on"'),
    ],
)
def test_the_command_installs_a_build_for_this_gpu(gpu, machine, expected):
    command = install_command(gpu, machine)
    assert expected in command
    assert "--force-reinstall --no-deps" in command, "a build of the same version must be replaced"
    assert "--extra-index-url" not in command, (
        "of two indexes the higher version would win, whoever put it there"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in tools are shell scripts")
def test_gpus_are_found_by_the_tools_of_their_vendors(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpu() is None
    tool(tmp_path / "vulkaninfo", "deviceName = llvmpipe (LLVM 15)")
    assert find_gpu() is None
    tool(tmp_path / "vulkaninfo", "deviceName = llvmpipe\ndeviceName = Intel Arc B580")
    assert find_gpu() == Gpu(Vendor.VULKAN, "Intel Arc B580")
    tool(tmp_path / "nvidia-smi", "NVIDIA GeForce RTX 3060\n| CUDA Version: 12.4  |")
    assert find_gpu() == Gpu(Vendor.NVIDIA, "NVIDIA GeForce RTX 3060", (12, 4))
    tool(tmp_path / "nvidia-smi", "no driver", code=9)
    assert find_gpu() == Gpu(Vendor.VULKAN, "Intel Arc B580")


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in tools are shell scripts")
def test_the_version_of_a_driver_is_that_of_the_vendors_tool(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver_version("CUDA") == driver_version("Vulkan") == driver_version("") == ""
    tool(tmp_path / "vulkaninfo", "driverName = llvmpipe\ndriverInfo = Mesa 22.3.6")
    tool(tmp_path / "nvidia-smi", "570.12\n570.12")
    assert [driver_version(backend) for backend in ("CUDA", "Vulkan", "")] == ["570.12", "Mesa 22.3.6", ""]


def tool(path, prints, code=0):
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
    path.chmod(0o755)
