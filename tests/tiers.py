"""The tiers of the suite: a port, a child process or a screen makes a test `process`.

`--guard` fails a quick test that uses what belongs to another tier.

A file whose `pytestmark` begins with another tier is not even imported for the quick one.

The end of a run names the copy of localspec that was tested, if it differs from the checkout.
"""

import gc
import inspect
import os
import re
import socket
import sys
from pathlib import Path

import pytest

# Python reports these before it does them, whichever library asks for them.
PROCESSES = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "pty.spawn",
    "os.kill",
}
PORTS = {"socket.bind", "socket.connect"}

QUICK = "not process and not nightly"  # as in pyproject.toml
# Fixtures that open a port or start processes.
STARTERS = {"endpoint", "hub", "broken", "engine", "real_engine"}

_seen: list[str] | None = None  # what the quick test that runs did, or None while another kind runs


def _watch(event: str, arguments: tuple) -> None:
    if _seen is None or event not in PROCESSES | PORTS:
        return
    if event in PORTS and arguments[0].family not in (socket.AF_INET, socket.AF_INET6):
        return
    _seen.append(event)


sys.addaudithook(_watch)


def pytest_addoption(parser):
    parser.addoption(
        "--guard", action="store_true", help="fail quick tests that use what belongs to the other tiers"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One more than there are cores where tests start processes and wait for them."""
    return (os.cpu_count() or 1) + (config.getoption("markexpr") != QUICK)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the garbage collector look neither at what is imported meanwhile nor ever again at what is there then."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    for item in items:
        is_screen = item.path.parent.name == "tui" and inspect.iscoroutinefunction(item.function)
        if is_screen or STARTERS & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.process)


def is_without_quick_tests(text: str) -> bool:
    """Return whether all tests of a file belong to another tier."""
    return bool(re.search(r"^pytestmark = \[?\s*pytest\.mark\.(?:process|nightly)\b", text, re.MULTILINE))


def pytest_ignore_collect(collection_path, config):
    """Leave out what `-m` would drop after importing it, unless the file is named."""
    if config.option.markexpr != QUICK or collection_path.suffix != ".py":
        return None
    named = {Path(argument.split("::")[0]).resolve() for argument in config.args}
    is_left_out = is_without_quick_tests(collection_path.read_text(encoding="utf-8"))
    return True if is_left_out and collection_path not in named else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from _guarded(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from _guarded(item))


def _guarded(item):
    """Fail a quick test that does what belongs to the other tiers."""
    global _seen
    is_quick = not any(item.iter_markers("process")) and not any(item.iter_markers("nightly"))
    seen = _seen = [] if is_quick and item.config.getoption("--guard") else None
    try:
        result = yield
    finally:
        _seen = None
    if seen:
        pytest.fail(
            f"a quick test used {', '.join(sorted({*seen}))}: mark it @pytest.mark.process", pytrace=False
        )
    return result


def differing_files(checkout: Path, installed: Path) -> list[str]:
    """Return the names of the modules that differ between two copies, without those of the terminal UI."""
    copies = [
        {str(file.relative_to(copy)): file.read_bytes() for file in copy.rglob("*.py")}
        for copy in (checkout, installed)
    ]
    names = {
        name for copy in copies for name in copy if not name.startswith("tui")
    }  # a wheel has ../tui there
    return sorted(name for name in names if copies[0].get(name) != copies[1].get(name))


def pytest_terminal_summary(terminalreporter):
    import localspec

    checkout, tested = Path(__file__).parent.parent / "localspec", Path(localspec.__file__).parent
    if checkout.is_dir() and (names := differing_files(checkout, tested)):
        what = f"The tests import localspec from {tested}, which differs from this checkout in {len(names)} files"
        terminalreporter.write_line(f"{what} ({names[0]}, ...): run `pip install .` again.")
