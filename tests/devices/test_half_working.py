"""A GPU whose driver dies in some passes or in all: `pytest tests/devices --device NAME`. The death is planted."""

import os
import subprocess
import sys
from signal import SIGSEGV

import pytest

from localspec.engine.client import EngineProcess
from localspec.engine.messages import Died, Generate, LoadPair, Ready
from localspec.models.registry import named
from tests.engine.workshop import until
from tests.llama.broken import install


@pytest.fixture(autouse=True)
def gpu(device, tmp_path, monkeypatch):
    if device is None or device == "CPU":
        pytest.skip("needs --device with a GPU")
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return device


@pytest.fixture
def dying(tmp_path, monkeypatch):
    """dying("flash"): passes on the GPU die then."""

    def plant(condition):
        folder = install(tmp_path / "site", SIGSEGV, decode_dies_if=f"gpu and {condition}")
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    return plant


def run(*arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def engine():
    """The process that answers for the chat and for the endpoint."""
    process = EngineProcess()
    process.start()
    process.send(LoadPair(named("demo"), options={"threads": 1}))
    yield process
    process.close()


def test_an_engine_that_dies_in_a_later_pass_names_the_device(gpu, dying, request):
    dying("len(widths) > 12 and len(widths) % 2")
    process = request.getfixturevalue("engine")
    reports = until(process, Ready, Died)
    if not isinstance(reports[-1], Died):
        process.send(Generate(1, ({"role": "user", "content": "Hello"},), {"max_tokens": 40}))
        reports = until(process, Died)
    assert f"(SIGSEGV) while running on {gpu}" in reports[-1].what or f"up on {gpu}" in reports[-1].what
    assert "--device CPU" in reports[-1].hint


def test_a_file_that_dies_on_the_gpu_alone_is_refused_with_another_place_to_try(
    tmp_path, monkeypatch, tiny_gguf
):
    dies_if = "params.n_gpu_layers and not params.no_alloc and b'demo' not in path"
    folder = install(tmp_path / "site", SIGSEGV, dies_if=dies_if)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    done = run("-m", "localspec", "run", "Hello", "--target", str(tiny_gguf(layers=1)), "--draft", "lookup")
    assert done.returncode == 1
    assert "error: llama.cpp gives up on" in done.stderr
    assert "--device CPU" in done.stderr
