"""A real server on loopback with the embedded pair, and the official clients pointed at it."""

import itertools
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.processes import informed

ADDRESS = re.compile(r"listening on (http://\S+)")


@dataclass
class Endpoint:
    """A running server, and a client of it."""

    url: str
    process: subprocess.Popen
    http: httpx.Client

    def engine_pid(self):
        return self.http.get("/props").json()["localspec"]["engine_pid"]


@contextmanager
def serving(home, *arguments, environment=None, stderr=subprocess.DEVNULL, files=None):
    """A server once its pair is loaded, until the end of the with statement; `files`: how many it may have open."""
    command = [sys.executable, "-m", "localspec", "serve", "--port", "0", *arguments]
    if files:
        command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command]
    environment = os.environ | {"LOCALSPEC_HOME": str(informed(home))} | (environment or {})
    process = subprocess.Popen(command, stdout=-1, stderr=stderr, env=environment, text=True)
    try:
        printed = list(itertools.takewhile(lambda line: "is ready" not in line, process.stdout))
        url = next(found[1] for line in printed if (found := ADDRESS.match(line)))
        with httpx.Client(base_url=url, timeout=300) as http:
            yield Endpoint(url, process, http)
    finally:
        process.terminate()
        process.wait(300)
        process.stdout.close()


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("home"), "demo") as found:
        yield found


@pytest.fixture(scope="session")
def http(endpoint):
    return endpoint.http


@pytest.fixture(scope="session")
def locked(tmp_path_factory):
    """A server with a key."""
    with serving(
        tmp_path_factory.mktemp("home"), "demo", environment={"LOCALSPEC_API_KEY": "sesame"}
    ) as found:
        yield found


@pytest.fixture(scope="session")
def client(endpoint):
    """OpenAI's own client."""
    import openai  # takes a second

    with openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0) as found:
        yield found
