"""The tiers of the suite: fixtures with a port make a test `process`; `--guard` fails a quick test that is none."""

import socket
import sys

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

SERVERS = {"endpoint", "hub"}  # fixtures that open a port

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


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    for item in items:
        if SERVERS & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a quick test that did what belongs to the other tiers."""
    global _seen
    is_quick = not any(item.iter_markers("process")) and not any(item.iter_markers("nightly"))
    _seen = [] if is_quick and item.config.getoption("--guard") else None
    seen = _seen
    try:
        result = yield
    finally:
        _seen = None
    if seen:
        pytest.fail(
            f"a quick test used {', '.join(sorted({*seen}))}: mark it @pytest.mark.process", pytrace=False
        )
    return result
