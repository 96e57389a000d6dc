"""Connections that send nothing, half of something, or too many: the server answers the others."""

import asyncio
import resource
import socket
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn

from localspec.serve import server as server_module
from localspec.serve.server import Connection, limits
from tests.serve.conftest import start, stop

HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le"
HALF_A_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nab"
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.timeout(120)
def test_half_sent_requests_do_not_stop_a_server_with_a_key(tmp_path):
    log = (tmp_path / "log").open("w+")
    endpoint = start(tmp_path, "demo", environment={"LOCALSPEC_API_KEY": "sesame"}, stderr=log, files=128)
    address = endpoint.url.removeprefix("http://").split(":")
    held = []
    try:
        for _ in range(200):
            held.append(socket.create_connection((address[0], int(address[1]))))
            held[-1].sendall(HALF)
        assert httpx.get(f"{endpoint.url}/health", timeout=30).status_code == 200
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        headers = {"authorization": "Bearer sesame"}
        answer = httpx.post(f"{endpoint.url}/v1/chat/completions", json=body, headers=headers, timeout=30)
        assert answer.status_code == 200
    finally:
        for one in held:
            one.close()
        stop(endpoint)
    log.seek(0)
    assert len(log.read()) < 1000


def test_connections_leave_files_for_everything_else(monkeypatch):
    for files, most, backlog in ((128, 32, 8), (1024, 480, 120), (10**6, 512, 128), (70, 8, 2)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert limits() == (most, backlog)


@asynccontextmanager
async def server(app):
    """uvicorn with our connections, and where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = uvicorn.Server(uvicorn.Config(app, http=Connection, lifespan="off", log_config=None))
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


@pytest.mark.parametrize("parts", [(), (HALF,), (HALF_A_BODY,), (WHOLE, HALF)])
async def test_a_request_that_does_not_arrive_ends_its_connection(monkeypatch, parts):
    monkeypatch.setattr(server_module, "ARRIVAL_SECONDS", 0.05)
    async with server(slow) as address:
        reader, writer = await sent(address, *parts)
        try:
            said = await asyncio.wait_for(reader.read(), 20)
        except ConnectionResetError:
            said = b""
        assert b"500" not in said
        writer.close()


async def test_an_answer_may_take_longer_than_its_request(monkeypatch):
    monkeypatch.setattr(server_module, "ARRIVAL_SECONDS", 0.05)
    async with server(slow) as address:
        reader, writer = await sent(address, WHOLE)
        assert (await asyncio.wait_for(reader.readuntil(b"ok"), 20)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_where_there_are_too_many_the_half_sent_ones_go_and_answers_stay(monkeypatch):
    monkeypatch.setattr(Connection, "most", 3)
    async with server(slow) as address:
        answered = [await sent(address, WHOLE)]
        held = [await sent(address, HALF) for _ in range(5)]
        answered.append(await sent(address, WHOLE))
        for reader, _ in answered:
            assert (await asyncio.wait_for(reader.readuntil(b"ok"), 20)).startswith(b"HTTP/1.1 200")
        for _, writer in (*answered, *held):
            writer.close()
