"""The setting `llama`: a build is found as archives and wheels lay it out, or refused in one sentence."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from localspec import demo
from localspec.errors import BackendFailure, BadSetting, LocalspecError
from localspec.llama import check, first_decode
from localspec.llama.library import lib
from localspec.machine.llama_build import chosen_folder, chosen_libraries, installed_build, library_files

REAL = Path(lib._base_path)
LLAMA, GGML = "libllama.so", "libggml.so.0"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the names and headers are those of Linux")
pytestmark = pytest.mark.usefixtures("cache_of_its_own")


@pytest.fixture
def build(tmp_path, monkeypatch):
    """The installed libraries in another folder, which is set."""
    monkeypatch.setenv("LOCALSPEC_LLAMA", str(tmp_path / "build"))
    (tmp_path / "build").mkdir()
    return linked(tmp_path / "build")


def linked(folder):
    for path in REAL.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def answer(*command):
    command = command or ("-m", "localspec", "run", "Hi", "--pair", "demo", "-n", "4")
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


@on_linux
@pytest.mark.parametrize("inside", ["", "llama-b9999", "lib"])
@pytest.mark.parametrize("kept", ["all", "with one number", "without a number"])
def test_the_libraries_are_found_wherever_an_archive_or_a_wheel_has_them(inside, kept, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_LLAMA", str(tmp_path))
    folder = tmp_path / inside
    folder.mkdir(exist_ok=True)
    for name in ("llama", "llama-common", "mtmd", "ggml", "ggml-base", "ggml-cpu-haswell"):
        for end in ("", ".0", ".0.5.0"):
            if kept == "all" or (end == ".0") == (kept == "with one number"):
                (folder / f"lib{name}.so{end}").write_text("code")
    end = "" if kept == "without a number" else ".0"
    expected = {name: folder / f"lib{name}.so{end}" for name in ("llama", "mtmd", "ggml")}
    assert chosen_libraries(tmp_path) == expected


@pytest.mark.parametrize("name", ["llama.dll", "libllama.dylib"])
def test_windows_and_apple_names_are_found(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_LLAMA", str(tmp_path))
    (tmp_path / name).write_text("code")
    assert chosen_libraries(tmp_path) == {"llama": tmp_path / name}


def test_the_setting_comes_before_other_variables_and_is_another_build(build, monkeypatch):
    chosen = installed_build()
    assert library_files()[0].parent == build
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(REAL.parent))
    assert installed_build() == chosen
    monkeypatch.setenv("LOCALSPEC_LLAMA", "")
    assert chosen_folder() is None
    assert installed_build() != chosen


@on_linux
@pytest.mark.process
def test_a_chosen_build_answers_in_the_command_in_python_and_from_config_toml(build, home, monkeypatch):
    """And no file of the package's own llama.cpp is loaded beside it."""
    assert answer().returncode == 0
    monkeypatch.delenv("LOCALSPEC_LLAMA")
    (home / "config.toml").write_text(f'llama = "{build}"')
    script = (
        "import localspec; print(len(localspec.run('Hi', pair='demo', max_tokens=4).text) > 0)\n"
        "import llama_cpp; from localspec import api; print(llama_cpp.Llama and api.backend().build)\n"
        "print({line.split()[-1] for line in open('/proc/self/maps') if 'libllama' in line or 'libggml' in line})"
    )
    done = answer("-c", script)
    assert done.stdout.startswith(f"True\n{build} ("), done
    assert [done.stdout.count(name) for name in ("libllama", "libggml-base", "libggml.")] == [1, 1, 1]


@pytest.mark.process
def test_llama_cpp_that_was_imported_before_is_a_sentence(build):
    script = "import llama_cpp\nfrom localspec.errors import BadSetting\ntry: import localspec.api\n"
    done = answer("-c", f"{script}except BadSetting as error: print(error)")
    assert "the setting llama has no effect, because llama_cpp was imported" in done.stdout, done


def test_logits_that_no_build_computes_are_refused(monkeypatch):
    found, model = first_decode._LOGITS[demo.target_path()], str(demo.target_path())
    first_decode.decode(check.SmokeTest(model, {"gpu_layers": 0}))
    monkeypatch.setitem(first_decode._LOGITS, demo.target_path(), [*found[:-1], float("nan")])
    with pytest.raises(BackendFailure, match="wrong values"):
        first_decode.decode(check.SmokeTest(model, {"gpu_layers": 0}))


def with_bytes(name, change):
    def broken(folder):
        data = bytearray((folder / name).read_bytes())
        (folder / name).unlink()
        (folder / name).write_bytes(change(data))

    return broken


def patched(name, at, value):
    return with_bytes(name, lambda data: data[:at] + value + data[at + len(value) :])


def without(*names):
    return lambda folder: [path.unlink() for name in names for path in folder.glob(f"{name}*")]


def with_link(make):
    def broken(folder):
        without("libllama")(folder)
        make(folder / LLAMA)

    return broken


def compiled(code):
    def broken(folder):
        without("libllama")(folder)
        if not shutil.which("gcc"):
            pytest.skip("needs gcc")
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(folder / LLAMA), "-"]
        subprocess.run(command, input=code, text=True, check=True)

    return broken


def only_deep(folder):
    (folder / "a" / "b").mkdir(parents=True)
    for path in list(folder.glob("*.so*")):
        path.rename(folder / "a" / "b" / path.name)


def two_builds(folder):
    (folder / "other").mkdir()
    linked(folder / "other")


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("no folder")


NONE, LOAD, DIES = "holds no llama.cpp", "llama.cpp could not be loaded", "does not work on this machine"
BROKEN = {
    "no folder": (shutil.rmtree, "there is no folder"),
    "a file in its place": (a_file, "there is no folder"),
    "an empty folder": (without("lib"), NONE),
    "a text": (lambda folder: (without("lib")(folder), (folder / "README.md").write_text("Hello")), NONE),
    "only deep below": (only_deep, NONE),
    "two builds": (two_builds, "holds several builds"),
    "no libllama": (without("libllama"), NONE),
    "no libggml": (without("libggml.so"), LOAD),
    "no processor": (without("libggml-cpu"), LOAD),
    "libllama is a folder": (with_link(Path.mkdir), NONE),
    "a link to nothing": (with_link(lambda path: path.symlink_to("gone.so")), NONE),
    "a link to itself": (with_link(lambda path: path.symlink_to(path)), NONE),
    "a link to a folder": (with_link(lambda path: path.symlink_to("/usr")), NONE),
    "a pipe": (with_link(os.mkfifo), NONE),
    "a link to a text": (with_link(lambda path: path.symlink_to(__file__)), LOAD),
    "the first page": (with_bytes(f"{LLAMA}.0", lambda data: data[:4096]), DIES),
    "another processor": (patched(f"{LLAMA}.0", 18, struct.pack("<H", 243)), LOAD),
    "another library": (with_link(lambda path: path.symlink_to(REAL / "libggml-base.so")), "lacks a function"),
    "a library without functions": (compiled("int nothing;"), "lacks a function"),
    "it dies": (compiled("__attribute__((constructor)) void die(void) { __builtin_trap(); }"), DIES),
    "it exits": (compiled("void _exit(int); __attribute__((constructor)) void end(void) { _exit(3); }"), DIES),
}  # fmt: skip


@on_linux
@pytest.mark.process
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_folder_is_refused_in_one_sentence(fault, build):
    damage, says = BROKEN[fault]
    damage(build)
    with pytest.raises(LocalspecError) as raised:
        check.check()
    text, hint = str(raised.value), raised.value.hint
    assert (says in text, "\n" in text, "llama" in hint) == (True, False, True), text
    assert isinstance(raised.value, BadSetting) == (says not in (LOAD, DIES, "lacks a function"))
