"""`localspec doctor`: backend, devices and the command for a GPU; `--prove` runs each part in a child."""

import json
import re
import signal
import sys

import pytest

from localspec.cli import CANCELLED, main
from localspec.cli.commands import demo, doctor
from localspec.cli.commands.doctor import Gpu, driver_version, find_gpu, install_command, official_archive
from localspec.errors import NotEnoughMemory

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


@pytest.mark.process
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


@pytest.fixture(autouse=True)
def no_room(monkeypatch):
    """The enlarged demo would be 0.8 GB."""

    def refuse(stage):
        raise NotEnoughMemory("too little memory", hint="free some")

    monkeypatch.setattr(demo, "enlarged", refuse)


@pytest.fixture
def child(monkeypatch):
    """child(script): parts run this instead; `part` is the JSON that they get."""

    def plant(script):
        begin = "import json, os, sys, time\npart = json.loads(sys.argv[1])\n"
        say = "def say(text, **more): print(json.dumps({'what': part['name'], 'measured': text} | more), flush=True)\n"
        monkeypatch.setattr(doctor, "CHILD", (sys.executable, "-c", begin + say + script))

    return plant


def page(capsys, *arguments, pair=()):
    code = main(["doctor", "--prove", *pair, "--on", "CPU", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.process
def test_the_cpu_is_proved_by_real_parts(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "SECONDS", dict.fromkeys(doctor.SECONDS, 500.0))  # the machine may be busy
    monkeypatch.setattr(doctor, "WORKING", 0.01)
    code, printed = page(capsys)
    assert code == 0
    assert "\n0 checks failed, " in printed
    for row in (
        r"correlation with an f16 cache: q4_0, all layers \| 0\.9\d+ \| at least 0\.9 \| passed",
        r"localspec verify \| \d+ greedy texts",
        r"models of the speeds \| the small demo: too little memory",
        r"speed-up, all, auto \| |every reply was too short",
        r"time in passes, auto \| target \d.*%, draft \d.*%, Python between them \d",
        r"machine \| .*localspec ",
    ):
        assert re.search(rf"\n\| {row}", printed), row


@pytest.mark.process
def test_a_failed_check_and_a_dead_part_and_a_slow_one_are_named_and_the_others_are_there(
    capsys, child, monkeypatch
):
    monkeypatch.setattr(doctor, "SECONDS", doctor.SECONDS | {"speed": 1.0})
    child(
        "say('row', passed=part['name'] != 'logits')\n"
        "if part['name'] == 'verify': print('the last words', file=sys.stderr); os._exit(3)\n"
        "if part['name'] == 'speed': time.sleep(60)\n"
    )
    _, printed = page(capsys)
    assert "\n2 checks failed, 1 row incomplete." in printed
    assert "| logits | row |  | FAILED |" in printed
    assert "| verify | row |  | passed |" in printed
    assert "| verify | exit code 3. the last words |  | FAILED |" in printed
    assert "| speed | stopped after 1 s |  | incomplete |" in printed


@pytest.mark.process
def test_ctrl_c_keeps_what_was_measured(capsys, child):
    child("say('row')\nif part['name'] == 'verify': os.kill(os.getppid(), 2); time.sleep(60)\n")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, printed = page(capsys)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == CANCELLED
    assert "| verify | stopped by Ctrl-C |  | incomplete |" in printed
    assert "\n| logits | row |" in printed
    assert "speed" not in printed


@pytest.mark.process
def test_a_named_pair_is_proved_as_well_and_json_has_the_rows(capsys, child):
    child("say(json.dumps(part['load']))")
    _, printed = page(capsys, "--json", pair=["demo"])
    found = json.loads(printed)
    assert [row["measured"] for row in found["rows"]].count(json.dumps({"pair": "demo"})) == 5
    assert "localspec" in found["machine"]


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
