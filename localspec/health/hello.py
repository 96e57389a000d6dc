"""Asks RPC servers in a child process, before this one talks to them.

llama.cpp aborts where something else listens, and waits for ever for a server that is stopped or serves another
program: a server serves one at a time.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict

from localspec import errors
from localspec.errors import BackendFailure, LocalspecError
from localspec.health.check import health
from localspec.health.child_environment import child_environment
from localspec.health.servers import addresses_of, assume_servers, used_servers

ANSWER_SECONDS = 3.0
_START_SECONDS = 60.0  # for the child itself


def use_servers(text: str) -> None:
    """Take in the servers of a text like "HOST:PORT,HOST:PORT", all or none; they stay until the process ends.

    Raises BadSetting, BackendFailure for one that does not answer.
    """
    wanted = addresses_of(text)
    for problem in _problems(address for address in wanted if address not in used_servers()):
        raise problem
    assume_servers((*used_servers(), *wanted))


def answering_servers(text: str) -> tuple[str, ...]:
    """Those of the text that answer now."""
    wanted = addresses_of(text)
    silent = {problem.address for problem in _problems(wanted)}
    return tuple(address for address in wanted if address not in silent)


class NoServer(BackendFailure):
    """Nothing that llama.cpp could use answers at an address."""

    def __init__(self, address: str, what: str, hint: str) -> None:
        super().__init__(what, hint=hint)
        self.address = address


def _problems(addresses: Iterable[str]) -> list[NoServer]:
    """What is wrong with those that do not answer; all are asked at once. Raises what asking raises."""
    children = [(address, _ask(address)) for address in addresses]
    return [problem for address, child in children if (problem := _answer(address, child))]


def _ask(address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "localspec.llama.rpc_hello", json.dumps(asdict(health())), address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def _answer(address: str, child: subprocess.Popen[str]) -> NoServer | None:
    with child:
        line = _line_within(_START_SECONDS, child)
        if line == "ready\n":  # llama.cpp is loaded
            line = _line_within(ANSWER_SECONDS, child)
        words = child.stderr.read() if line == "" and child.stderr else ""
    if line is None:
        return NoServer(
            address,
            f"the RPC server {address} did not answer within {ANSWER_SECONDS:.0f} s",
            "it may be stopped, cut off, or serving another program: a server serves one at a time",
        )
    if not line:
        return _refusal(address, words)
    if answer := json.loads(line):
        error: LocalspecError = getattr(errors, answer["kind"])(answer["error"], hint=answer["hint"])
        raise error
    return None


def _line_within(seconds: float, child: subprocess.Popen[str]) -> str | None:
    """The next line of its output, "" at the end; None, and the child is killed, where none comes in time."""
    assert child.stdout is not None
    over = threading.Event()

    def end() -> None:
        over.set()
        child.kill()

    limit = threading.Timer(seconds, end)
    limit.daemon = True
    limit.start()
    line = child.stdout.readline()
    limit.cancel()
    return None if over.is_set() else line


def _refusal(address: str, words: str) -> NoServer:
    if "Failed to connect" in words:
        port = address.rpartition(":")[2]
        return NoServer(
            address,
            f"no RPC server listens at {address}",
            f"start llama.cpp's there: ggml-rpc-server --host 0.0.0.0 --port {port}",
        )
    if "handshake failed" in words:
        return NoServer(
            address,
            f"the RPC server {address} is of another version of llama.cpp",
            "use the same version on both machines",
        )
    return NoServer(address, f"what listens at {address} is no RPC server", "check the port")
