"""A build that dies is found out in a child process: it is used without what kills it, or refused in a sentence."""

import os
import subprocess
import sys
from signal import SIGILL, SIGSEGV

import pytest

from localspec.errors import BackendFailure, NotEnoughMemory
from localspec.files import recalled
from localspec.llama import check
from localspec.llama.check import Health, SmokeTestOutcome, health
from tests.llama.broken import install

pytestmark = [
    pytest.mark.usefixtures("cache_of_its_own"),
    pytest.mark.skipif(sys.platform == "win32", reason="dies by signals"),
]

WITH_EXTRA_BUFFERS = "params.use_extra_bufts"


@pytest.fixture(autouse=True)
def unknown(tmp_path, monkeypatch):
    """Nothing is known about the installed build."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(check, "_known", None)


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """broken(SIGILL, while_importing=True): that installation is what child processes find."""

    def make(signal, **how):
        folder = install(tmp_path / "site", signal, **how)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    return make


def localspec(*arguments):
    command = [sys.executable, "-m", "localspec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def answer(*pair):
    return localspec("run", "Hello", "--max-tokens", "5", "--threads", "1", *(pair or ("--pair", "demo")))


def test_a_build_that_dies_with_extra_buffers_answers_without_them_and_says_so_once(broken, tiny_gguf):
    """The check of the build finds it out, and the process that answers gets the result."""
    broken(SIGSEGV, dies_if=WITH_EXTRA_BUFFERS)
    pair = ("--target", str(tiny_gguf(layers=3)), "--draft", str(tiny_gguf(layers=1)))
    first, second = answer(*pair), answer(*pair)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout.strip()
    assert "llama.cpp crashed (SIGSEGV) with repacked weights" in first.stderr
    assert "without them it is slower: see `localspec doctor`" in first.stderr
    assert "SIGSEGV" not in second.stderr


@pytest.mark.parametrize(
    ("signal", "how", "says", "hint"),
    [
        (SIGILL, {"while_importing": True}, "was built for another processor", "on this machine: pip"),
        (SIGSEGV, {"dies_if": "True"}, "does not work on this machine", "GGML_NATIVE=off"),
    ],
    ids=["while it is loaded", "with and without"],
)
def test_a_build_that_cannot_be_used_ends_in_one_sentence(broken, signal, how, says, hint):
    broken(signal, **how)
    done = answer()
    assert (done.returncode, done.stdout) == (1, "")
    error, *rest = done.stderr.splitlines()
    assert error.startswith("error: the installed llama.cpp")
    assert says in error
    assert signal.name in error
    assert hint in rest[0]
    assert len(rest) == 1


@pytest.fixture
def tried(monkeypatch):
    """tried("SIGSEGV", "") plants how the next trials end, and forgets what this process knows of the build."""

    def plant(*causes):
        ends = iter(causes)
        monkeypatch.setattr(check, "decode_in_child", lambda _: SmokeTestOutcome(cause=next(ends)))
        monkeypatch.setattr(check, "_known", None)

    return plant


def test_what_is_known_is_not_tried_again(tried, monkeypatch):
    tried("")
    assert health() == Health()
    tried()
    assert health() == Health()
    monkeypatch.setattr(check, "processor", lambda: "another one")
    tried()
    with pytest.raises(StopIteration):
        health()


def test_a_build_that_cannot_be_used_is_tried_again_each_time(tried):
    """A driver may be repaired without a change to the libraries."""
    tried("SIGSEGV", "SIGSEGV")
    with pytest.raises(BackendFailure):
        health()
    tried("")
    assert health() == Health()


@pytest.mark.parametrize("cause", ["SIGSEGV", "SIGKILL"])
def test_one_death_on_a_busy_machine_is_not_blamed_on_the_build(tried, cause):
    tried(cause, "", "")
    assert check.check() == Health()


def test_a_first_trial_that_the_system_always_ends_says_nothing_about_the_build(tried, tmp_path):
    tried("SIGKILL", "", "SIGKILL")
    with pytest.raises(NotEnoughMemory):
        check.check()
    assert not remembered(tmp_path)


def remembered(tmp_path):
    return [recalled(file, Health) for file in (tmp_path / "home/cache/health").glob("*.json")]


def test_a_file_that_ends_llama_cpp_in_every_way_is_a_sentence_and_switches_nothing_off(broken, tiny_gguf):
    broken(SIGSEGV, dies_if="b'tiny' in path")
    done = answer("--target", str(tiny_gguf(layers=3)), "--no-draft")
    assert done.returncode == 1
    assert "the engine process ended unexpectedly (SIGSEGV) while" in done.stderr
    assert answer().returncode == 0
    assert check.health() == Health()


@pytest.mark.parametrize(("backend", "driver"), [("cpu", False), ("vulkan", True)])
def test_a_gpu_build_that_dies_in_every_way_names_the_driver_as_well(tmp_path, monkeypatch, backend, driver):
    (tmp_path / f"libggml-{backend}.so").write_text("code")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    hint = check.why_unusable(SmokeTestOutcome(cause="SIGSEGV")).hint
    assert hint.startswith("update the driver of the GPU, or rebuild") == driver
    assert "GGML_NATIVE=off" in hint
