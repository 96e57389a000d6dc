"""A build is distinguished by its libraries, rebuilt with what it has, and tried in a process of its own."""

import json
import os
import sys

import pytest

from localspec.llama.check import check
from localspec.machine import llama_build
from localspec.machine.llama_build import installed_build, rebuild_command


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """libraries("libggml.so", ...) are the installed ones."""
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))

    def put(*names):
        for name in names:
            (tmp_path / name).write_text("code")
        return tmp_path

    return put


def test_another_library_of_the_same_version_is_another_build(libraries):
    folder = libraries("libllama.so", "libggml.so.0.25", "libggml-base.dylib", "README.md")
    first = installed_build()
    assert installed_build() == first
    (folder / "README.md").write_text("no library")
    assert installed_build() == first
    libraries("libggml-cuda.so")
    second = installed_build()
    os.utime(folder / "libllama.so", (1, 1))
    assert len({first, second, installed_build()}) == 3


def test_a_link_to_nothing_is_no_library(libraries):
    folder = libraries("libllama.so")
    first = installed_build()
    (folder / "libggml.so").symlink_to(folder / "gone.so")
    assert installed_build() == first


def test_a_rebuild_keeps_the_backends_that_are_there(libraries):
    libraries("libggml-cpu.so", "libggml-cuda.so", "libggml-rpc.so")
    assert 'CMAKE_ARGS="-DGGML_CUDA=on -DGGML_RPC=on -DGGML_NATIVE=off" pip' in rebuild_command(
        "GGML_NATIVE=off"
    )
    assert rebuild_command("GGML_RPC=on").count("GGML_RPC=on") == 1


def test_a_plain_rebuild_sets_no_options(libraries):
    libraries("libggml-cpu.so")
    assert rebuild_command().startswith("pip install --force-reinstall")


def test_the_processor_stays_the_same_while_its_clock_does_not():
    assert llama_build.processor() == llama_build.processor()
    assert "MHz" not in llama_build.processor()


# Python runs a module of this name at its start, in children too.
TELLS = """
import atexit, json, os, resource, sys
def tell():
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    with open(os.path.join(os.path.dirname(__file__), sys.argv[0].rpartition(os.sep)[2] + ".json"), "w") as file:
        json.dump({name: resource.getrlimit(getattr(resource, name))[0] for name in names}, file)
atexit.register(tell)
"""


@pytest.mark.process
@pytest.mark.usefixtures("cache_of_its_own")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_a_child_may_not_fill_disk_or_memory(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(TELLS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    check()
    limits = json.loads((tmp_path / "first_decode.py.json").read_text())
    assert limits["RLIMIT_CORE"] == 0
    assert 0 < limits["RLIMIT_FSIZE"] <= 1 << 26
    assert 0 < limits["RLIMIT_DATA"] <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
