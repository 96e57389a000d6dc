"""A build is told apart by its libraries, and rebuilt with what it has."""

import os

import pytest

from localspec.health import installed
from localspec.health.installed import installed_build, rebuild_command


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
    assert installed.processor() == installed.processor()
    assert "MHz" not in installed.processor()
