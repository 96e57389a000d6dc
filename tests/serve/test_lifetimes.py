"""Clients leave, engines die, requests queue: the port stays open and the next reply is right."""

import asyncio
import json
import os
import random
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import openai
import pytest

from localspec.cli.commands.serve import load_request
from localspec.cli.program import parser
from tests.processes import lives, until
from tests.serve.conftest import serving
from tests.serve.test_openai import QUESTION

pytestmark = pytest.mark.process

# It ends with the context only: servers that get it have one of 32,768 tokens, which take minutes.
ENDLESS = {"messages": [{"role": "user", "content": "Write a lot."}], "temperature": 0, "ignore_eos": True}
PATIENT = ("demo", "--context", "32768")
SHORT = {"messages": QUESTION, "temperature": 0, "max_tokens": 8}
HEAVY = {"messages": [{"role": "user", "content": "word " * 900}], "temperature": 0, "max_tokens": 500}


def text_of(http, body):
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("patient"), *PATIENT, "--parallel", "4") as running:
        yield running


@pytest.fixture
def server(patient):
    return patient.http


def leave_when_running(endpoint, stream):
    """Leave a reply after its first chunks, or without a stream once it runs."""
    running = "llamacpp:requests_processing 1"
    until(lambda: running not in endpoint.http.get("/metrics").text)
    if stream:
        with endpoint.http.stream("POST", "/v1/chat/completions", json=ENDLESS | {"stream": True}) as answer:
            read = answer.iter_raw()
            for _ in range(8):
                next(read)
        return

    async def begun():
        async with httpx.AsyncClient(base_url=endpoint.url, timeout=300) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=ENDLESS))
            while running not in (await client.get("/metrics")).text:
                assert not asking.done()
            asking.cancel()

    asyncio.run(begun())


async def leave(url, body, after_seconds):
    async with httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(after_seconds)
        asking.cancel()


@pytest.mark.parametrize("stream", [True, False])
def test_whoever_leaves_at_any_moment_stops_the_engine(patient, stream):
    expected = text_of(patient.http, SHORT)
    for _ in range(20):
        body = random.choice((ENDLESS, HEAVY)) | {"stream": stream}
        asyncio.run(leave(patient.url, body, random.uniform(0, 0.15)))
    assert text_of(patient.http, SHORT) == expected


def test_an_engine_that_is_killed_in_a_reply_is_an_error_there_and_nowhere_else(tmp_path):
    log = tmp_path / "log"
    with (
        serving(tmp_path, *PATIENT, stderr=log.open("w")) as endpoint,
        openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0) as client,
    ):
        expected = text_of(endpoint.http, SHORT)
        stream = client.chat.completions.create(
            model="demo",
            stream=True,
            messages=ENDLESS["messages"],
            extra_body={"ignore_eos": True},
        )
        next(stream), next(stream)
        os.kill(endpoint.engine_pid(), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="the engine process ended unexpectedly"):
            for _ in stream:
                pass
        assert text_of(endpoint.http, SHORT) == expected
    lines = [line.split("  ", 1)[1] for line in log.read_text().splitlines()]
    lines = [line for line in lines if not line.startswith("notice: ")]
    asked, died, failed, ready, again = lines
    assert asked.startswith("POST /v1/chat/completions 200 in ")
    assert again.startswith("POST /v1/chat/completions 200 in ")
    assert died.startswith("the engine process ended unexpectedly (SIGKILL")
    assert died.endswith("; demo is loaded again")
    assert failed.startswith("POST /v1/chat/completions 200 in ")
    assert ": the engine process ended unexpectedly" in failed
    assert ready == "demo is ready"


def test_the_log_says_why_a_request_failed(tmp_path):
    log = tmp_path / "log"
    with serving(tmp_path, *PATIENT, stderr=log.open("w")) as endpoint:
        assert endpoint.http.post("/v1/chat/completions", json=SHORT | {"max_tokens": "x"}).status_code == 400
        assert endpoint.http.post("/v1/messages", json=SHORT | {"model": "nope"}).status_code == 404
        assert endpoint.http.get("/nope").status_code == 404
        for stream in (True, False):
            leave_when_running(endpoint, stream)
        assert text_of(endpoint.http, SHORT)
    lines = [
        re.sub(r"in [\d.]+ s", "in T s", re.sub(r"after [\d,]+ char", "after N char", line.split("  ", 1)[1]))
        for line in log.read_text().splitlines()
    ]
    assert lines[:5] == [
        'POST /v1/chat/completions 400 in T s: max_tokens cannot be "x" (give a whole number)',
        "POST /v1/messages 404 in T s: there is no model 'nope' here; use 'demo'",
        "GET /nope 404 in T s: there is no path /nope here",
        "POST /v1/chat/completions 200 in T s: the client left after N characters from demo",
        "POST /v1/chat/completions 499 in T s: the client left",
    ]


def test_tokens_are_counted_beside_a_running_reply(patient):
    http = patient.http
    question = {"messages": [{"role": "user", "content": "x"}]}
    asked = {"/tokenize": {"content": "hello"}, "/detokenize": {"tokens": [5, 6]}}
    asked |= dict.fromkeys(("/apply-template", "/v1/messages/count_tokens"), question)
    with http.stream("POST", "/v1/chat/completions", json=ENDLESS | {"stream": True}) as running:
        lines = running.iter_lines()
        while "content" not in next(lines):
            pass
        for path, body in asked.items():
            assert http.post(path, json=body).status_code == 200
        assert "requests_processing 1" in http.get("/metrics").text, "they would have waited for its end"


@pytest.mark.parametrize(
    "signs", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGINT)]
)
def test_replies_that_the_servers_end_cuts_say_so(tmp_path, signs):
    if signal.getsignal(signs[0]) is signal.SIG_IGN:
        pytest.skip("this signal is ignored here, as under nohup, and so it is by the server")
    log = tmp_path / "log"
    with serving(tmp_path, *PATIENT, stderr=log.open("w")) as endpoint:
        http = endpoint.http
        with (
            ThreadPoolExecutor(1) as pool,
            http.stream("POST", "/v1/chat/completions", json=ENDLESS | {"stream": True}) as running,
        ):
            lines = running.iter_lines()
            next(lines)
            waiting = pool.submit(http.post, "/v1/chat/completions", json=ENDLESS)
            until(lambda: http.get("/props").json()["localspec"]["waiting"] == 1)
            for sign in signs:
                endpoint.process.send_signal(sign)
                until(lambda: "running replies have 2 seconds" in log.read_text())
            *_, last = (line for line in lines if line)
            assert "the server is shutting down" in last
            assert waiting.result().status_code == 503
            assert "the server is shutting down" in waiting.result().text
        assert endpoint.process.wait(300) == 0
    lines = log.read_text()
    assert "running replies have 2 seconds" in lines
    assert "Exception" not in lines


def test_an_idle_pair_is_unloaded_and_loaded_again_for_the_next_request(tmp_path):
    with serving(tmp_path, "demo", "--keep-alive", "0.002") as endpoint:
        expected, engine = text_of(endpoint.http, SHORT), endpoint.engine_pid()
        for _ in range(2):
            until(lambda: endpoint.http.get("/props").json()["is_sleeping"])
            until(lambda pid=engine: not lives(pid))
            assert endpoint.http.get("/api/ps").json() == {"models": []}
            assert endpoint.http.get("/health").status_code == 200
            assert text_of(endpoint.http, SHORT) == expected
            engine = endpoint.engine_pid()
        kept = {"model": "demo", "keep_alive": "1h", "prompt": "Hello", "options": {"num_predict": 1}}
        assert endpoint.http.post("/api/generate", json=kept | {"stream": False}).status_code == 200
        (model,) = endpoint.http.get("/api/ps").json()["models"]
        left = datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)
        assert timedelta(minutes=59) < left < timedelta(hours=1)
        unloaded = endpoint.http.post("/api/generate", json={"model": "demo", "keep_alive": 0}).json()
        assert unloaded["done_reason"] == "unload"
        until(lambda: not lives(endpoint.engine_pid()))


def asking(question, **more):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 60} | more


def metric(http, name):
    lines = http.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])


def test_the_first_token_of_a_second_request_waits_for_no_running_reply(server):
    with server.stream("POST", "/v1/chat/completions", json=ENDLESS | {"stream": True}) as running:
        lines = filter(None, running.iter_lines())
        while "content" not in next(lines):
            pass
        assert server.get("/slots").json()[0]["is_processing"]
        second = server.post("/v1/chat/completions", json=asking("Tell me a story.")).json()
        assert (
            second["timings"]["localspec"]["replies_at_once"] >= 1
        )  # measured costs decide about shared passes
        assert [slot["is_processing"] for slot in server.get("/slots").json()] == [True, False, False, False]
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["finish_reason"] is None
    assert server.get("/props").json()["total_slots"] == 4
    assert 1 <= metric(server, "llamacpp:n_busy") <= 4


@pytest.mark.parametrize(("given", "parallel"), [([], "auto"), (["--parallel", "3"], 3)])
def test_the_plan_decides_about_a_second_reply_unless_the_user_says_how_many(given, parallel):
    load = load_request(parser("serve").parse_args(["serve", "demo", *given]))
    assert load.options["parallel"] == parallel
