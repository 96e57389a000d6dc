"""Pulls in processes of their own: killed, interrupted, two at once, and behind networks of every kind."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import close_session

from localspec.cli import main
from localspec.models import local_models
from localspec.models.registry import named

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent.parent


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    line = [sys.executable, "-m", "localspec", *arguments]
    return subprocess.Popen(line, env=os.environ | environment, cwd=ROOT, **pipes)


def fetched() -> set[str]:
    return {path.name for path in local_models.models_dir().rglob("*") if path.is_file()}


def test_kills_at_random_moments_cost_next_to_nothing(known, hub):
    hub.bytes_per_second = 400_000
    chance = random.Random(5)
    for _ in range(3):
        process = command("pull", "tiny")
        asked = len(hub.gets())
        while len(hub.gets()) == asked and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.communicate()
        assert not named("tiny").draft.place.exists()
    hub.bytes_per_second = None
    process = command("pull", "tiny")
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert fetched() == {"target.gguf", "draft.gguf"}
    assert hub.sent.total() < 1.3 * (known.target.size + known.draft.size)


def test_two_processes_at_once_share_the_work(known, hub):
    hub.bytes_per_second = 400_000
    processes = [command("pull", "tiny") for _ in range(2)]
    printed = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert hub.sent.total() == known.target.size + known.draft.size
    assert fetched() == {"target.gguf", "draft.gguf"}


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C cannot be sent to one process there")
def test_ctrl_c_keeps_what_came_and_says_how_to_go_on(known, hub):
    hub.bytes_per_second = 50_000  # not over when the signal comes, on a busy machine either
    process = command("pull", "tiny")
    while not hub.sent.total():
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Resume with: localspec pull tiny" in printed
    assert "Traceback" not in printed
    assert list(local_models.models_dir().rglob("*.part"))


def test_a_proxy_is_used(known, hub):
    # The hub itself serves as the proxy: it is asked with a whole address.
    process = command("pull", "tiny", HF_ENDPOINT="http://hub.example", HTTP_PROXY=hub.endpoint, NO_PROXY="")
    process.communicate(timeout=300)
    assert any(request.path.startswith("http://hub.example/") for request in hub.requests)


_LFS = '"lfs": {"sha256": "x", "size": 1, "pointerSize": 1}}]}'
_SHAPES = (
    "<html>log in</html>",
    "[]",
    "{}",
    '"text"',
    "null",
    '{"error": "blocked"}',
    '{"id": "a/b", "sha": 3}',
    '{"id": "a/b", "siblings": 7}',
    '{"id": "a/b", "sha": "abc", "siblings": [{"rfilename": null, "size": 1, ' + _LFS,
    '{"id": "a/b", "sha": "abc", "siblings": [{"rfilename": "f.gguf", "size": "many", ' + _LFS,
    "[" * 100_000,
)


@pytest.mark.parametrize("page", [*map(str.encode, _SHAPES), b"\xff\xfe\x00"])
@pytest.mark.parametrize(
    "line",
    [
        "pull org/r",
        "info org/r:Q4_K_M",
        "run --pull --target org/r:Q4_K_M Hi",
        "pairs add x --target org/r:Q4_K_M",
    ],
)
def test_an_answer_of_another_shape_is_one_sentence_that_names_the_server(hub, impatient, capsys, line, page):
    hub.page = page
    assert main(line.split()) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "the server at 127.0.0.1 does not answer like a Hugging Face Hub" in error
    assert hint.startswith("hint: check HF_ENDPOINT")


@pytest.fixture
def network(monkeypatch, impatient):
    """Sets variables that are read when a session begins, so that one begins."""

    def set_variables(**variables):
        close_session()
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    yield set_variables
    close_session()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"ALL_PROXY": "socks5://127.0.0.1:9"}, "(cannot be reached|socksio)"),
        ({"ALL_PROXY": "socks4://127.0.0.1:9"}, "the proxy settings cannot be used"),
        ({"HTTP_PROXY": "http://proxy:port"}, "the proxy settings cannot be used"),
        ({"HTTP_PROXY": "http://ada:secret@127.0.0.1:9"}, "the proxy 127.0.0.1:9 cannot be reached"),
        ({"SSL_CERT_FILE": "/nowhere/cert.pem"}, "the certificates cannot be read"),
        ({"HF_TOKEN": "hf_ünsafe"}, "a space or a character outside ASCII"),
        ({"HF_TOKEN": "hf_a b"}, "a space or a character outside ASCII"),
        ({"HF_ENDPOINT": "127.0.0.1:9"}, "HF_ENDPOINT=127.0.0.1:9 is not the address of a server"),
    ],
)
def test_a_network_that_is_set_up_wrongly_is_one_sentence_about_that(known, network, capsys, variables, says):
    network(**variables)
    assert main(["info", "org/target:target.gguf"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert re.search(says, error)
    assert hint.startswith("hint: ")
    assert "hf_" not in error


@pytest.mark.parametrize(
    ("line", "variable", "says"),
    [
        ("pull tiny", {"HF_HUB_OFFLINE": "1"}, r"error: org.* cannot be downloaded: HF_HUB_OFFLINE"),
        (
            "info org/target:target.gguf",
            {"HF_TOKEN_PATH": "/"},
            r"error: org.* cannot be downloaded: Is a directory",
        ),
        ("pull tiny", {"HF_ENDPOINT": "http://[bad"}, r"error: HF_ENDPOINT=http://\[bad is not the address"),
    ],
)
def test_what_the_hubs_library_reads_at_its_import_is_one_sentence(known, hub, line, variable, says):
    process = command(*line.split(), **variable)
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 1
    assert re.match(says, printed)
    assert hub.requests == []
