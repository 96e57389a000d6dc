"""The port, and connections that send nothing, half of something, or too many: the others are answered."""

import asyncio
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, asynccontextmanager, suppress
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from localspec.errors import BadSetting
from localspec.serve import server as server_module
from localspec.serve.server import Server, address_of, limits, listener, reuse_option
from tests.serve.conftest import serving

HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le"
HALF_A_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nab"
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.process
def test_half_sent_requests_do_not_stop_a_server_with_a_key(tmp_path):
    log = tmp_path / "log"
    key = {"LOCALSPEC_API_KEY": "sesame"}
    with (
        serving(tmp_path, "demo", environment=key, stderr=log.open("w"), files=128) as endpoint,
        ExitStack() as held,
    ):
        url = urlsplit(endpoint.url)
        for _ in range(200):
            held.enter_context(socket.create_connection((url.hostname, url.port))).sendall(HALF)
            time.sleep(0.01)  # the system tries one that finds its short queue full again after a second
        assert httpx.get(f"{endpoint.url}/health", timeout=300).status_code == 200
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        headers = {"authorization": "Bearer sesame"}
        answer = httpx.post(f"{endpoint.url}/v1/chat/completions", json=body, headers=headers, timeout=300)
        assert answer.status_code == 200
    assert len(log.read_text()) < 1000


def test_connections_leave_files_for_everything_else(monkeypatch):
    for files, most, backlog in ((128, 32, 8), (1024, 480, 120), (10**6, 512, 128), (70, 8, 2)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert limits() == (most, backlog)


@asynccontextmanager
async def server(app):
    """Our server for an app, and where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, http="h11", lifespan="off", log_config=None, timeout_keep_alive=1)
        running = Server(config, SimpleNamespace(running=False, stop=lambda: None))
        task = asyncio.create_task(running._serve([listening]))
        while not running.started:
            await asyncio.sleep(0.01)
        try:
            yield listening.getsockname()
        finally:
            running.should_exit = True
            await task


async def slow(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def sent(address, *parts):
    reader, writer = await asyncio.open_connection(*address)
    for part in parts:
        writer.write(part)
        await writer.drain()
    return reader, writer


@pytest.mark.process
@pytest.mark.parametrize("parts", [(), (HALF,), (HALF_A_BODY,), (WHOLE, HALF)])
async def test_a_request_that_does_not_arrive_ends_its_connection(monkeypatch, parts):
    monkeypatch.setattr(server_module, "ARRIVAL_SECONDS", 0.05)
    async with server(slow) as address:
        reader, writer = await sent(address, *parts)
        try:
            words = await asyncio.wait_for(reader.read(), 300)
        except ConnectionResetError:
            words = b""
        assert b"500" not in words
        writer.close()


@pytest.mark.process
async def test_an_answer_may_take_longer_than_its_request(monkeypatch):
    monkeypatch.setattr(server_module, "ARRIVAL_SECONDS", 0.05)
    async with server(slow) as address:
        reader, writer = await sent(address, WHOLE)
        assert (await asyncio.wait_for(reader.readuntil(b"ok"), 300)).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.process
async def test_where_there_are_too_many_the_half_sent_ones_go_and_answers_stay(monkeypatch):
    monkeypatch.setattr(Server, "most", 3)
    async with server(slow) as address:
        answered = [await sent(address, WHOLE)]
        held = [await sent(address, HALF) for _ in range(5)]
        answered.append(await sent(address, WHOLE))
        for reader, _ in answered:
            assert (await asyncio.wait_for(reader.readuntil(b"ok"), 300)).startswith(b"HTTP/1.1 200")
        for _, writer in (*answered, *held):
            writer.close()


@pytest.mark.process
def test_streams_that_nobody_reads_and_that_fill_the_server_leave_its_health(tmp_path):
    asked = {"messages": [{"role": "user", "content": "x"}], "stream": True, "regex": "[a-z ]{3000}"}
    # Sixteen choices are more than sockets hold: a stream that fits into one ends, and makes room.
    body = json.dumps(asked | {"logprobs": True, "top_logprobs": 20, "n": 16}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with serving(tmp_path, "demo", files=128) as endpoint:
        port = int(endpoint.url.rsplit(":", 1)[1])
        with ExitStack() as stack:

            def fill(streams):
                for _ in range(streams):
                    client = stack.enter_context(socket.socket())
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                    client.connect(("127.0.0.1", port))
                    client.sendall(head.encode() + body)

            fill(40)
            for _ in range(20):
                assert httpx.get(f"{endpoint.url}/health", timeout=300).status_code == 200
            for _ in range(5):  # on a busy machine a stream may have ended, which leaves room for one more
                refused = httpx.get(f"{endpoint.url}/props", timeout=300)
                if refused.status_code != 200:
                    break
                fill(4)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")


@pytest.mark.process
def test_bodies_have_one_budget(http):
    """Three large ones at once: one is refused, and so is nothing afterwards."""
    body = b'{"model": "' + b"x" * (30 * 2**20) + b'"'
    url = urlsplit(str(http.base_url))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + 1}\r\n\r\n".encode()
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((url.hostname, url.port))) for _ in range(3)]
        for client in clients:  # all but the last byte
            with suppress(ConnectionError):
                client.sendall(head + body)
        (refused,), *_ = select.select(clients, [], [], 300)
        assert refused.recv(20).startswith(b"HTTP/1.1 503")
        assert http.get("/health").status_code == 200
    for _ in range(50):
        if (answer := http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})).status_code == 200:
            break
    assert answer.status_code == 200


@pytest.mark.process
def test_small_segments_are_not_held_back():
    with listener("127.0.0.1", 0) as listening:
        # asyncio looks at this before it switches Nagle's algorithm off.
        assert listening.proto == socket.IPPROTO_TCP
        assert address_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.process
def test_a_port_that_is_taken_and_a_host_that_cannot_be_one_are_refused_in_a_sentence():
    with listener("127.0.0.1", 0) as first:
        for host, port in (("127.0.0.1", first.getsockname()[1]), ("\u00e9..b", 0)):
            with pytest.raises(BadSetting, match="is not available"):
                listener(host, port)


@pytest.mark.process
def test_it_says_that_it_listens_once_the_options_hold(tmp_path):
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", "0", "--split", "x,y"]
    home = os.environ | {"LOCALSPEC_HOME": str(tmp_path)}
    ended = subprocess.run(command, env=home, text=True, capture_output=True, timeout=300)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "error: x,y is not a valid split over GPUs" in ended.stderr


def test_on_windows_as_its_name_says_no_second_program_takes_the_port_over():
    """The decision, with the platform faked: -5 is SO_EXCLUSIVEADDRUSE, ~SO_REUSEADDR in winsock2.h."""
    assert reuse_option("win32") == ~4
    assert reuse_option("linux") == reuse_option("darwin") == socket.SO_REUSEADDR
