"""Several replies at once: each is the one that it is alone, and none waits for another."""

import json
import threading

import httpx
import pytest

from localspec.cli.commands.serve import load_request
from localspec.cli.program import parser
from tests.serve.conftest import start, stop
from tests.serve.test_lifetimes import LONG, text_of

QUESTIONS = ("What is speculative decoding?", "Tell me a story.", "Who are you?", "Name a colour.")
MANY = LONG | {"max_tokens": 4000, "response_format": {"type": "regex", "regex": "[a-z ]{20000,}"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = start(tmp_path_factory.mktemp("home"), "demo", "--parallel", "4")
    with httpx.Client(base_url=running.url, timeout=60) as client:
        yield client
    stop(running)


def asking(question, **more):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 60} | more


def texts_of(http, body):
    choices = http.post("/v1/chat/completions", json=body).json()["choices"]
    return [choice["message"]["content"] for choice in choices]


def test_replies_at_once_are_those_that_each_question_gets_alone(server):
    alone = [text_of(server, asking(question)) for question in QUESTIONS]
    found = {}

    def ask(question):
        found[question] = text_of(server, asking(question))

    threads = [threading.Thread(target=ask, args=(question,)) for question in QUESTIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[question] for question in QUESTIONS] == alone


def test_each_of_several_choices_has_a_seed_of_its_own_derived_from_the_one_given(server):
    asked = asking("Tell me a story.", temperature=1, max_tokens=40)
    alone = [text_of(server, asked | {"seed": seed}) for seed in (2**63, 2**63 + 1, 2**63 + 2)]
    assert texts_of(server, asked | {"seed": 2**63, "n": 3}) == alone


def tokens_read(http):
    lines = http.get("/metrics").text.splitlines()
    return int(next(line for line in lines if line.startswith("llamacpp:prompt_tokens_total")).split()[1])


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_read_their_prompt_once(server, stream):
    question = " ".join(f"{stream} {number}" for number in range(240))
    before, asked = tokens_read(server), asking(question, n=4, stream=stream)
    answer = server.post("/v1/chat/completions", json=asked)
    read = tokens_read(server) - before
    alone = server.post("/v1/chat/completions", json=asking(question)).json()
    prompt = alone["usage"]["prompt_tokens"]
    assert prompt >= 1000
    assert 0.9 * prompt < read < 1.05 * prompt
    if not stream:
        texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
        assert texts == [alone["choices"][0]["message"]["content"]] * 4


def test_the_first_token_of_a_second_request_waits_for_no_running_reply(server):
    with server.stream("POST", "/v1/chat/completions", json=MANY | {"stream": True}) as running:
        lines = filter(None, running.iter_lines())
        while "content" not in next(lines):
            pass
        assert server.get("/slots").json()[0]["is_processing"]
        second = server.post("/v1/chat/completions", json=asking("Tell me a story.")).json()
        assert (
            second["timings"]["localspec"]["replies_at_once"] >= 1
        )  # measured prices decide which passes are shared
        assert [slot["is_processing"] for slot in server.get("/slots").json()] == [True, False, False, False]
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["finish_reason"] is None
    assert server.get("/props").json()["total_slots"] == 4
    busy = next(
        line for line in server.get("/metrics").text.splitlines() if line.startswith("llamacpp:n_busy")
    )
    assert 1 <= float(busy.rpartition(" ")[2]) <= 4


@pytest.mark.parametrize(("given", "parallel"), [([], "auto"), (["--parallel", "3"], 3)])
def test_the_plan_decides_about_a_second_reply_unless_the_user_says_how_many(given, parallel):
    load = load_request(parser("serve").parse_args(["serve", "demo", *given]))
    assert load.options["parallel"] == parallel
