"""A real server on loopback with the embedded pair, and the official clients pointed at it."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import httpx
import pytest

ADDRESS = re.compile(r"listening on (http://\S+)")


@dataclass
class Endpoint:
    """A running server."""

    url: str
    process: subprocess.Popen

    def engine_pid(self):
        return httpx.get(f"{self.url}/props").json()["localspec"]["engine_pid"]


def start(home, *arguments, environment=None, stderr=subprocess.DEVNULL, files=None):
    """The server's process once its pair is loaded, and its address; `files`: how many it may have open."""
    command = [sys.executable, "-m", "localspec", "serve", "--port", "0", *arguments]
    if files:
        command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,  # a line for each reply
        env=os.environ | {"LOCALSPEC_HOME": str(home)} | (environment or {}),
        text=True,
    )
    url = None
    for line in process.stdout:
        if found := ADDRESS.match(line):
            url = found[1]
        if "is ready" in line:
            return Endpoint(url, process)
    raise AssertionError("the server ended before it was ready")


def stop(endpoint):
    endpoint.process.terminate()
    endpoint.process.wait(10)
    endpoint.process.stdout.close()


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    running = start(tmp_path_factory.mktemp("home"), "demo")
    yield running
    stop(running)


@pytest.fixture(scope="session")
def http(endpoint):
    with httpx.Client(base_url=endpoint.url, timeout=60) as client:
        yield client
