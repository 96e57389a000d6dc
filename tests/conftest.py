"""Fixtures that every test may need."""

import os
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from hypothesis import settings

EXACT = Path(__file__).with_name("exact")
on_devices = any(argument.startswith("--device") for argument in sys.argv)  # they round in another way
for store in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HOME"):  # no test sees models of the user's other programs
    os.environ[store] = os.path.join(tempfile.gettempdir(), "localspec-no-store")
if not on_devices and "PYTEST_XDIST_WORKER" not in os.environ:  # workers begin with this environment
    os.environ["LOCALSPEC_EXACT_DEMO"] = tempfile.mkdtemp(prefix="localspec-demo-")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(EXACT), os.environ.get("PYTHONPATH"))))
    runpy.run_path(str(EXACT / "sitecustomize.py"))

import localspec  # noqa: E402
from localspec import options as localspec_options  # noqa: E402  after its modules are exact

USUAL_FOLDER = localspec_options._folder

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("searching", deadline=None, max_examples=1000)  # --hypothesis-profile searching
settings.load_profile("same")

# Plain `pytest` does not make the checkout importable; last, so that an installed localspec stays first.
sys.path.append(str(Path(__file__).parent.parent))


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A suite that was started in the background inherits that, and tests send Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help="models go to this device, as `localspec doctor` calls it; may be repeated. For RPC0, RPC1, ... "
        "servers are started on loopback",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Tests run side by side where pytest-xdist is installed, unless -n says how many."""
    if config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput"):
        option = config.option
        option.numprocesses = "auto" if option.numprocesses is None else option.numprocesses
        option.maxprocesses = option.maxprocesses or 4
        option.dist = "worksteal" if option.dist == "no" else option.dist


pytest_plugins = ["tests.tiers"]


def pytest_configure(config):
    # llama.cpp looks for devices when it is loaded, which importing the first test does.
    if any(name.startswith("Vulkan") for name in config.getoption("--device")):
        os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", "0")  # also one that computes on the CPU
        os.environ.setdefault("GGML_VK_DISABLE_FUSION", "1")  # Mesa 22's crashes in some fused programs


def pytest_unconfigure(config):
    if not on_devices and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["LOCALSPEC_EXACT_DEMO"], ignore_errors=True)


def pytest_generate_tests(metafunc):
    if names := metafunc.config.getoption("--device"):
        metafunc.parametrize("device", names, indirect=True, scope="session")


@pytest.fixture(scope="session", autouse=True)
def device(request):
    """The device that models go to by default; None leaves it to llama.cpp's build."""
    name = getattr(request, "param", None)
    if name is None:
        yield None
        return
    from tests.devices.placing import models_on

    with models_on(name):
        yield name


@pytest.fixture(scope="session", autouse=True)
def every_module_imported():
    """Import what commands import late: otherwise it could keep a test's replacement of another module's function."""
    for module in walk_packages(localspec.__path__, "localspec."):
        with suppress(ModuleNotFoundError):  # some need a package that is no dependency
            if not module.name.endswith("__main__"):
                import_module(module.name)


@pytest.fixture(scope="session", autouse=True)
def cache_of_all_homes(tmp_path_factory):
    """What works on this machine and what models need is found out once, not again in every test's new home."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            localspec_options,
            "_folder",
            lambda name, usual: cache if name == "cache" else USUAL_FOLDER(name, usual),
        )
        yield cache


@pytest.fixture(autouse=True)
def no_prompt_cache_of_another_test(cache_of_all_homes):
    """Remove what the replies of the test before stored: it says nothing about the machine."""
    shutil.rmtree(cache_of_all_homes / "texts", ignore_errors=True)


@pytest.fixture
def shipped(monkeypatch):
    """Give a test what users have: an f16 KV cache, flash attention where it is faster, the demo pair in Q8_0."""
    as_shipped(monkeypatch)


def as_shipped(patch):
    from localspec.llama import cache, model

    patch.setattr(cache, "exact", False, raising=False)
    patch.setattr(model, "exact", False, raising=False)
    patch.delenv("LOCALSPEC_EXACT_DEMO", raising=False)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home that is not there yet."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def home_of_processes(tmp_path, monkeypatch, cache_of_all_homes):
    """A new home with that cache, for tests that start processes of their own."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").symlink_to(cache_of_all_homes, target_is_directory=True)
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    return home


@pytest.fixture
def cache_of_its_own(monkeypatch, cache_of_all_homes):
    """For tests of the cache itself."""
    monkeypatch.setattr(localspec_options, "_folder", USUAL_FOLDER)


@pytest.fixture
def quick_disk(monkeypatch):
    """No disk is full."""
    monkeypatch.setattr("localspec.caches.store.LEFT_FREE", 0)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory) -> Callable[..., Path]:
    """tiny_gguf(vocab_size=300) writes a GGUF and returns its path; equal arguments give the same file."""
    from tests.gguf import write_gguf

    return writer_of(write_gguf, tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def tiny_adapter(tmp_path_factory) -> Callable[..., Path]:
    """tiny_adapter(layers=2) writes a LoRA adapter for the model of that shape, as tiny_gguf does."""
    from tests.gguf import write_adapter

    return writer_of(write_adapter, tmp_path_factory.mktemp("adapters"))


def writer_of(write: Callable[..., Path], folder: Path) -> Callable[..., Path]:
    """Writes a file for each shape once, and returns its path."""
    from tests.gguf import Shape

    written: dict[Shape, Path] = {}

    def path_of(**shape: object) -> Path:
        wanted = Shape(**shape)
        if wanted not in written:
            written[wanted] = write(folder / f"{wanted.name}-{len(written)}.gguf", wanted)
        return written[wanted]

    return path_of
