"""The terminal UI's engine behind a server elsewhere: the same messages, every cycle among them."""

import time

import httpx
import pytest
from localspec.tui.app import ChatApp
from localspec.tui.state.chat import Setup

from localspec.engine import remote
from localspec.engine.messages import (
    Ask,
    Cancel,
    CompareReplies,
    Died,
    Failure,
    ListPairs,
    LoadPair,
    PairList,
    Ready,
    ReplySettings,
    Turn,
)
from localspec.engine.remote import PATH, RemoteEngine
from localspec.errors import BadSetting
from localspec.events import Cycle, Finished, FinishReason, Piece, Started

GREEDY = ReplySettings(temperature=0, max_tokens=24)
ENDLESS = ReplySettings(max_tokens=1500, regex="[a-z ]{6000,}")


@pytest.fixture
def engine(endpoint):
    found = RemoteEngine(endpoint.url)
    found.start()
    yield found
    found.close()


def reports_until(engine, *kinds):
    found = []
    deadline = time.monotonic() + 60
    while not any(isinstance(report, kinds) for report in found):
        assert time.monotonic() < deadline
        found += engine.drain()
        time.sleep(0.005)
    return found


def asked(serial, settings=GREEDY):
    return Ask(serial, (Turn("user", "What is speculative decoding?"),), settings)


def test_a_reply_comes_with_every_cycle(engine, http):
    engine.send(LoadPair())
    ready = reports_until(engine, Ready)[-1]
    assert (ready.pair, ready.context_length) == ("demo", 2048)
    engine.send(asked(1))
    found = reports_until(engine, Finished)
    cycles = [report for report in found if isinstance(report, Cycle)]
    reply = found[-1].reply
    assert isinstance(found[0], Started)
    assert tuple(token for cycle in cycles for token in cycle.tokens) == reply.tokens
    assert "".join(report.text for report in found if isinstance(report, Piece)) == reply.text
    assert reply.stats.drafted == sum(cycle.drafted for cycle in cycles) > 0
    question = {"messages": [{"role": "user", "content": "What is speculative decoding?"}]}
    told = http.post("/v1/chat/completions", json=question | {"temperature": 0, "max_tokens": 24}).json()
    assert told["choices"][0]["message"]["content"] == reply.text


def test_a_reply_that_is_stopped_ends_with_what_it_has(engine):
    engine.send(asked(1, ENDLESS))
    reports_until(engine, Cycle)
    engine.send(Cancel(1))
    reply = reports_until(engine, Finished)[-1].reply
    assert reply.finish_reason is FinishReason.CANCELLED
    assert 0 < len(reply.tokens) < 1500


def test_a_question_that_still_waits_can_be_stopped_too(engine, endpoint, http):
    with httpx.stream(
        "POST", f"{endpoint.url}/completion", json={"prompt": "a", "stream": True, "regex": "[a-z ]{6000,}"}
    ):
        engine.send(asked(7))
        while "requests_deferred 1" not in http.get("/metrics").text:
            time.sleep(0.005)
        engine.send(Cancel(7))
        failure = reports_until(engine, Failure)[-1]
    assert (failure.what, failure.serial) == ("stopped before it began", 7)


def test_pairs_are_listed_and_what_belongs_to_the_other_machine_is_refused(engine):
    engine.send(ListPairs())
    assert "demo" in [row.name for row in reports_until(engine, PairList)[-1].rows]
    engine.send(CompareReplies(3, ()))
    assert reports_until(engine, Failure)[-1].serial == 3
    engine.send(LoadPair("no-such-pair"))
    assert "no model 'no-such-pair'" in reports_until(engine, Failure)[-1].what


async def test_the_terminal_ui_shows_what_is_drafted_elsewhere(engine, endpoint, tmp_path):
    engine.send(LoadPair())
    setup = Setup(engine, lambda: RemoteEngine(endpoint.url), tmp_path, settings=GREEDY, stored=False)
    app = ChatApp(setup)
    async with app.run_test(size=(100, 40)) as pilot:
        while app.state.engine.ready is None:
            await pilot.pause(0.02)
        await pilot.press(*"Hello", "enter")
        while app.state.engine.last_reply is None or app.state.engine.busy:
            await pilot.pause(0.02)
        stats = app.state.engine.last_reply.stats
        assert (app.state.engine.pair_name, stats.emitted) == ("demo", 24)
        assert stats.drafted > 0


def test_a_server_of_another_version_is_told_apart(engine, monkeypatch):
    monkeypatch.setattr(remote, "PROTOCOL", 0)
    engine.send(LoadPair())
    assert "another version of localspec" in reports_until(engine, Died)[-1].what


def test_a_server_that_is_not_there_is_a_death_and_a_new_start_tries_again():
    engine = RemoteEngine("http://127.0.0.1:9")
    engine.start()
    engine.send(LoadPair())
    assert "http://127.0.0.1:9 cannot be reached" in reports_until(engine, Died)[-1].what
    assert not engine.alive
    with pytest.raises(BadSetting):
        RemoteEngine("ftp://host")


@pytest.mark.parametrize("body", [b"", b"{}", b'["Quit",{}]', b'["Ask",{"serial":1}]', b'["Reply",{}]'])
def test_other_messages_are_refused(http, body):
    assert http.post(PATH, content=body).status_code == 400
