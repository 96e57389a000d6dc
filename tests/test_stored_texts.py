"""A conversation outlives its process: the next load reads only what is new."""

import argparse
import importlib
import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from localspec.tui.text.status import footer

import localspec
from localspec.caches.store import usage
from localspec.caches.writer import finish
from localspec.chat import loaded_pair
from localspec.chat.conversations import Numbers, StoredMessage
from localspec.cli import main
from localspec.engine.client import EngineProcess
from localspec.llama import stored_texts
from localspec.options import cache_dir
from localspec.serve.numbers import timings

LONG = [
    {"role": "user", "content": "One small step for a man. " * 150},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": "What comes next?"},
]


@pytest.fixture(autouse=True)
def slow_model(home, cache_of_its_own, monkeypatch):
    """The demo is quick to read: here every second counts, and no disk is slow."""
    monkeypatch.setattr("localspec.caches.store.LEFT_FREE", 0)
    monkeypatch.setattr(stored_texts, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(stored_texts, "_ASSUMED", 1e15)


def folder():
    return cache_dir() / "texts"


def ask(session, messages=LONG):
    return session.run(messages, max_tokens=12, temperature=0)


def asked(messages=LONG, **options):
    """The reply of a pair that is loaded for it, and closed."""
    with localspec.load("demo", threads=1, **options) as session:
        reply = ask(session, messages)
    finish(30)
    return reply


def test_a_conversation_is_read_once_by_two_loads():
    first = asked()
    assert first.stats.restored_tokens == 0
    again = asked()
    assert again.text == first.text
    assert again.stats.restored_tokens == again.stats.reused_tokens == again.stats.prompt_tokens - 1
    assert again.stats.restore_seconds > 0


def test_instructions_are_read_once_for_all_conversations():
    common = {"role": "system", "content": "Mind the gap. " * 250}
    asked([common, {"role": "user", "content": "Good morning."}])
    other = asked([common, {"role": "user", "content": "What is a train?"}])
    assert other.stats.restored_tokens > 900


@pytest.mark.parametrize("options", [{"cache_gb": 0}, {"owner": "somebody"}])
def test_without_room_or_for_another_owner_nothing_is_brought_back(options):
    asked()
    files = usage(folder())
    assert asked(**options).stats.restored_tokens == 0
    assert (usage(folder()) == files) == ("cache_gb" in options)


def test_a_pair_that_rests_stores_what_it_has_read(monkeypatch):
    monkeypatch.setattr(loaded_pair, "REST_SECONDS", 0.05)
    monkeypatch.setattr(stored_texts, "SHARE", 1.0)
    with localspec.load("demo", threads=1) as session:
        ask(session)
        deadline = time.monotonic() + 20
        while not usage(folder())[0]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert ask(session).stats.restored_tokens == 0  # it is in memory


def test_a_reply_that_comes_at_once_lets_the_pair_not_rest(monkeypatch):
    monkeypatch.setattr(stored_texts, "SHARE", 1.0)
    with localspec.load("demo", threads=1) as session:
        for _ in range(3):
            ask(session)
        assert usage(folder())[0] == 0


def test_a_reply_waits_for_one_copy_and_says_how_long(monkeypatch):
    monkeypatch.setattr(loaded_pair, "REST_SECONDS", 0.05)
    with localspec.load("demo", threads=1) as session:
        target = session.pair.target
        copying = []

        def copy(*, resting):
            copying.append(resting)
            time.sleep(1.0)

        monkeypatch.setattr(type(target), "store", lambda self, **how: copy(**how))
        before = ask(session)
        while not copying:
            time.sleep(0.01)
        beside = ask(session)
        assert max(before.stats.waited_seconds, 0.3) < beside.stats.waited_seconds
        monkeypatch.undo()


def test_conversations_of_a_session_that_nobody_closed_are_stored_when_python_ends():
    code = """
import localspec
from localspec.caches import store
from localspec.engine.client import EngineProcess
from localspec.llama import stored_texts
from tests.test_stored_texts import ask
stored_texts.LEAST_SECONDS, stored_texts._ASSUMED, store.LEFT_FREE = 0.0, 1e15, 0
session = localspec.load("demo", threads=1)
print(ask(session).stats.restored_tokens > 0)
"""
    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert answers == ["False\n", "True\n"]


def test_list_counts_the_caches_and_rm_removes_them(capsys):
    asked()
    texts, taken = usage(folder())
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["caches"] == {"texts": texts, "bytes": taken}
    assert main(["list"]) == 0
    assert "caches of earlier texts" in capsys.readouterr().out
    (folder() / "mine.txt").touch()
    assert main(["rm", "--caches"]) == 0
    assert "freed" in capsys.readouterr().out
    assert [path.name for path in folder().iterdir() if path.name != ".lock"] == ["mine.txt"]
    assert main(["rm", "--caches"]) == 0
    assert "no cache is stored" in capsys.readouterr().out


def test_the_footer_and_timings_say_what_came_from_the_disk():
    asked()
    reply = asked()
    cost = Numbers.of(reply.stats)
    assert f"{reply.stats.restored_tokens:,} tokens from the disk" in footer(
        StoredMessage("assistant", "", numbers=cost)
    )
    assert timings(reply, ())["localspec"]["restored_n"] == reply.stats.restored_tokens
    assert Numbers.of(replace(reply.stats, restored_tokens=0)).restored_tokens is None


class Asked(Exception):
    """Ends a command where it asks the engine."""


def load_of(line, monkeypatch):
    """The load request of a command line."""

    def send(self, request):
        raise Asked(request)

    monkeypatch.setattr(EngineProcess, "start", lambda self: None)
    monkeypatch.setattr(EngineProcess, "close", lambda self: None)
    monkeypatch.setattr(EngineProcess, "send", send)
    name, *rest = line.split()
    command = importlib.import_module(f"localspec.cli.commands.{name}")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(Asked) as found:
        command.run(parser.parse_args(rest))
    return found.value.args[0]


def test_each_key_of_the_endpoint_owns_its_caches(monkeypatch):
    one, other, none = (
        load_of(f"serve demo {key}", monkeypatch).owner for key in ("--api-key one", "--api-key other", "")
    )
    assert len({one, other, none}) == 3
    assert none == ""
    assert "one" not in one


@pytest.mark.parametrize(("flag", "room"), [("--no-store", 0), ("--store", None), ("", None)])
def test_a_prompt_that_is_not_to_be_stored_uses_no_caches(monkeypatch, flag, room):
    assert load_of(f"run demo Hi {flag}", monkeypatch).options.get("cache_gb") == room
