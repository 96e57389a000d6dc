"""Clients leave, engines die, requests queue: the port stays open and the next reply is right."""

import asyncio
import os
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import openai
import pytest

from tests.serve.conftest import start, stop

LONG = {
    "messages": [{"role": "user", "content": "Write a lot."}],
    "temperature": 0,
    "max_tokens": 1500,
    "response_format": {"type": "regex", "regex": "[a-z ]{6000,}"},  # it does not end by itself
}
SHORT = {
    "messages": [{"role": "user", "content": "What is speculative decoding?"}],
    "temperature": 0,
    "max_tokens": 8,
}
HEAVY = {"messages": [{"role": "user", "content": "word " * 900}], "temperature": 0, "max_tokens": 500}


def text_of(http, body):
    return http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]


async def leave(url, body, after_seconds):
    async with httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(after_seconds)
        asking.cancel()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stream", [True, False])
def test_whoever_leaves_at_any_moment_stops_the_engine(endpoint, http, stream):
    expected = text_of(http, SHORT)
    for _ in range(20):
        body = random.choice((LONG, HEAVY)) | {"stream": stream}
        asyncio.run(leave(endpoint.url, body, random.uniform(0, 0.15)))
    assert text_of(http, SHORT) == expected  # the replies that were left would take minutes


def test_fifty_requests_at_once_are_all_answered_alike(endpoint, http):
    expected = text_of(http, SHORT)
    with httpx.Client(base_url=endpoint.url, timeout=60) as client, ThreadPoolExecutor(50) as pool:
        assert list(pool.map(lambda _: text_of(client, SHORT), range(50))) == [expected] * 50


def test_chat_goes_before_background_work(endpoint):
    ended = []

    async def ask(client, name, body):
        await client.post("/v1/chat/completions", json=body)
        ended.append(name)

    async def all_at_once():
        async with httpx.AsyncClient(base_url=endpoint.url, timeout=60) as client:
            asked = [ask(client, "running", LONG | {"max_tokens": 200})]
            asked += [ask(client, "title", SHORT), ask(client, "chat", SHORT | {"max_tokens": 100})]
            await asyncio.gather(*(start_later(n, call) for n, call in enumerate(asked)))

    async def start_later(number, call):
        await asyncio.sleep(number * 0.05)
        await call

    asyncio.run(all_at_once())
    assert ended == ["running", "chat", "title"]


def test_an_engine_that_is_killed_in_a_reply_is_an_error_there_and_nowhere_else(tmp_path):
    log = (tmp_path / "log").open("w+")
    endpoint = start(tmp_path, "demo", stderr=log)
    try:
        with (
            openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0) as client,
            httpx.Client(base_url=endpoint.url, timeout=60) as http,
        ):
            expected = text_of(http, SHORT)
            stream = client.chat.completions.create(model="demo", stream=True, **LONG)
            next(stream), next(stream)
            os.kill(endpoint.engine_pid(), signal.SIGKILL)
            with pytest.raises(openai.APIError, match="the engine process ended unexpectedly"):
                for _ in stream:
                    pass
            assert text_of(http, SHORT) == expected
    finally:
        stop(endpoint)
    log.seek(0)
    lines = [line.split("  ", 1)[1] for line in log.read().splitlines()]
    asked, died, failed, ready, again = lines
    assert asked.startswith("POST /v1/chat/completions 200 in ")
    assert again.startswith("POST /v1/chat/completions 200 in ")
    assert died.startswith("the engine process ended unexpectedly (SIGKILL")
    assert died.endswith("; demo is loaded again")
    assert failed.startswith("POST /v1/chat/completions 200 in ")
    assert ": the engine process ended unexpectedly" in failed
    assert ready == "demo is ready"


def test_the_log_says_why_a_request_failed(tmp_path):
    log = (tmp_path / "log").open("w+")
    endpoint = start(tmp_path, "demo", stderr=log)
    try:
        with httpx.Client(base_url=endpoint.url, timeout=60) as http:
            assert http.post("/v1/chat/completions", json=SHORT | {"max_tokens": "x"}).status_code == 400
            assert http.post("/v1/messages", json=SHORT | {"model": "nope"}).status_code == 404
            assert http.get("/nope").status_code == 404
            for stream in (True, False):
                asyncio.run(leave(endpoint.url, LONG | {"stream": stream}, 0.3))
            assert text_of(http, SHORT)
    finally:
        stop(endpoint)
    log.seek(0)
    lines = [re.sub(r"in [\d.]+ s", "in T s", line.split("  ", 1)[1]) for line in log.read().splitlines()]
    assert lines[:5] == [
        "POST /v1/chat/completions 400 in T s: max_tokens is 'x' (give a whole number)",
        "POST /v1/messages 404 in T s: there is no model 'nope' here; ask for 'demo'",
        "GET /nope 404 in T s: there is no path /nope here",
        "POST /v1/chat/completions 200 in T s: the client left",
        "POST /v1/chat/completions 499 in T s: the client left",
    ]


def test_a_log_on_a_full_disk_costs_no_reply(tmp_path):
    with open("/dev/full", "w") as full:
        endpoint = start(tmp_path, "demo", stderr=full)
        try:
            with httpx.Client(base_url=endpoint.url, timeout=60) as http:
                assert all(text_of(http, SHORT) for _ in range(3))
                assert http.get("/nope").status_code == 404
                assert http.get("/health").status_code == 200
        finally:
            stop(endpoint)


def test_tokens_are_counted_beside_a_running_reply(http):
    question = {"messages": [{"role": "user", "content": "x"}]}
    asked = {
        "/tokenize": {"content": "hello"},
        "/detokenize": {"tokens": [5, 6]},
        "/apply-template": question,
        "/v1/messages/count_tokens": question,
    }
    with http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as running:
        lines = running.iter_lines()
        while "content" not in next(lines):
            pass
        for path, body in asked.items():
            assert http.post(path, json=body).status_code == 200
        assert "requests_processing 1" in http.get("/metrics").text, "they would have waited for its end"


@pytest.mark.parametrize("signs", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_replies_that_the_servers_end_cuts_say_so(tmp_path, signs):
    log = (tmp_path / "log").open("w+")
    endpoint = start(tmp_path, "demo", stderr=log)
    try:
        with (
            httpx.Client(base_url=endpoint.url, timeout=60) as http,
            ThreadPoolExecutor(1) as pool,
            http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as running,
        ):
            lines = running.iter_lines()
            next(lines)
            waiting = pool.submit(http.post, "/v1/chat/completions", json=LONG)
            until(lambda: http.get("/props").json()["localspec"]["waiting"] == 1)
            for sign in signs:
                endpoint.process.send_signal(sign)
                time.sleep(0.3)
            *_, last = (line for line in lines if line)
            assert "the server is being ended" in last
            assert waiting.result().status_code == 503
            assert "the server is being ended" in waiting.result().text
        assert endpoint.process.wait(20) == 0
    finally:
        stop(endpoint)
    log.seek(0)
    lines = log.read()
    assert "open replies have 2 seconds" in lines
    assert "Exception" not in lines


def test_an_idle_pair_is_unloaded_and_loaded_again_for_the_next_request(tmp_path):
    endpoint = start(tmp_path, "demo", "--keep-alive", "0.002")
    try:
        with httpx.Client(base_url=endpoint.url, timeout=60) as http:
            expected, engine = text_of(http, SHORT), endpoint.engine_pid()
            for _ in range(2):
                until(lambda: http.get("/props").json()["is_sleeping"])
                until(lambda pid=engine: not lives(pid))
                assert http.get("/api/ps").json() == {"models": []}
                assert http.get("/health").status_code == 200
                assert text_of(http, SHORT) == expected
                engine = endpoint.engine_pid()
            kept = {"model": "demo", "keep_alive": "1h", "prompt": "Hello", "options": {"num_predict": 1}}
            assert http.post("/api/generate", json=kept | {"stream": False}).status_code == 200
            (model,) = http.get("/api/ps").json()["models"]
            left = datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)
            assert timedelta(minutes=59) < left < timedelta(hours=1)
            assert (
                http.post("/api/generate", json={"model": "demo", "keep_alive": 0}).json()["done_reason"]
                == "unload"
            )
            until(lambda: not lives(endpoint.engine_pid()))
    finally:
        stop(endpoint)


def until(true, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
