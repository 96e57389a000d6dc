"""A conversation outlives its process: the next load reads only what is new."""

import argparse
import importlib
import json
import subprocess
import sys
import threading
import time

import pytest
from localspec.tui.status import footer

import localspec
from localspec.caches.store import finish, usage
from localspec.chat import loaded_pair
from localspec.cli import main
from localspec.conversations.conversations import StoredMessage
from localspec.engine.client import EngineProcess
from localspec.options import cache_dir
from localspec.serve.numbers import timings

LONG = [
    {"role": "user", "content": "One small step for a man. " * 90},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": "What comes next?"},
]


pytestmark = pytest.mark.usefixtures("home", "cache_of_its_own", "quick_disk")


def folder():
    return cache_dir() / "texts"


def ask(session, messages=LONG):
    return session.run(messages, max_tokens=12, temperature=0)


def asked(messages=LONG, **options):
    with localspec.load("demo", threads=1, cache="all", **options) as session:
        reply = ask(session, messages)
    finish(300)
    return reply


def test_a_conversation_is_read_once_by_two_loads():
    first = asked()
    assert first.stats.restored_tokens == 0
    again = asked()
    assert again.text == first.text
    assert again.stats.restored_tokens == again.stats.reused_tokens == again.stats.prompt_tokens - 1
    assert again.stats.restore_seconds > 0
    message = StoredMessage("assistant", "", stats=again.stats)
    assert f"{again.stats.restored_tokens:,} tokens from the disk" in footer(message)
    assert timings(again, ())["localspec"]["restored_n"] == again.stats.restored_tokens


def test_instructions_are_read_once_for_all_conversations():
    common = {"role": "system", "content": "Mind the gap. " * 150}
    asked([common, {"role": "user", "content": "Good morning."}])
    other = asked([common, {"role": "user", "content": "What is a train?"}])
    assert other.stats.restored_tokens > 500


def test_without_room_or_for_another_owner_nothing_is_brought_back():
    asked()
    files = usage(folder())
    assert asked(cache_gb=0).stats.restored_tokens == 0
    assert usage(folder()) == files
    assert asked(owner="somebody").stats.restored_tokens == 0
    assert usage(folder()) != files


def test_a_pair_that_rests_stores_what_it_has_read(monkeypatch):
    monkeypatch.setattr(loaded_pair, "REST_SECONDS", 0.0)
    with localspec.load("demo", threads=1, cache="all") as session:
        ask(session)
        deadline = time.monotonic() + 300
        while not usage(folder())[0]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert ask(session).stats.restored_tokens == 0  # it is in memory


def test_a_reply_that_comes_at_once_lets_the_pair_not_rest():
    with localspec.load("demo", threads=1, cache="all") as session:
        for _ in range(3):
            ask(session)
        assert usage(folder())[0] == 0


def test_a_reply_waits_for_one_copy_and_says_how_long(monkeypatch):
    monkeypatch.setattr(loaded_pair, "REST_SECONDS", 0.0)
    begun = threading.Event()
    with localspec.load("demo", threads=1, cache="all") as session:

        def copy(target):
            if begun.is_set():  # the copy after the second reply
                return
            begun.set()
            while not session.pair.slots.awaited:
                time.sleep(0.01)
            time.sleep(0.2)

        monkeypatch.setattr(type(session.pair.target), "store", copy)
        ask(session)
        assert begun.wait(300)
        assert ask(session).stats.waited_seconds >= 0.2
        monkeypatch.undo()


@pytest.mark.process
def test_conversations_of_a_session_that_nobody_closed_are_stored_when_python_ends():
    code = """
import localspec
from localspec.caches import store
from localspec.engine.client import EngineProcess
from tests.caches.test_prompt_cache import ask
store.LEFT_FREE = 0
session = localspec.load("demo", threads=1, cache="all")
print(ask(session).stats.restored_tokens > 0)
"""
    command = [sys.executable, "-c", code]
    assert [subprocess.check_output(command, text=True) for _ in range(2)] == ["False\n", "True\n"]


def test_list_counts_the_caches_and_rm_removes_them(capsys):
    asked()
    texts, taken = usage(folder())
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["caches"] == {"texts": texts, "bytes": taken}
    assert main(["list"]) == 0
    assert "prompt caches" in capsys.readouterr().out
    (folder() / "mine.txt").touch()
    assert main(["rm", "--caches"]) == 0
    assert "freed" in capsys.readouterr().out
    assert [path.name for path in folder().iterdir() if path.name != ".lock"] == ["mine.txt"]
    assert main(["rm", "--caches"]) == 0
    assert "there is no prompt cache" in capsys.readouterr().out


class PromptOrMessages(Exception):
    """Ends a command where it asks the engine."""


def load_of(line, monkeypatch):
    def send(self, request):
        raise PromptOrMessages(request)

    monkeypatch.setattr(EngineProcess, "start", lambda self: None)
    monkeypatch.setattr(EngineProcess, "close", lambda self: None)
    monkeypatch.setattr(EngineProcess, "send", send)
    name, *rest = line.split()
    command = importlib.import_module(f"localspec.cli.commands.{name}")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(PromptOrMessages) as found:
        command.run(parser.parse_args(rest))
    return found.value.args[0]


def test_each_key_of_the_endpoint_owns_its_caches(monkeypatch):
    keys = ("--api-key one", "--api-key other", "")
    one, other, none = (load_of(f"serve demo {key}", monkeypatch).owner for key in keys)
    assert len({one, other, none}) == 3
    assert none == ""
    assert "one" not in one


@pytest.mark.parametrize(("flag", "room"), [("--no-store", 0), ("--store", None), ("", None)])
def test_a_prompt_that_is_not_to_be_stored_uses_no_caches(monkeypatch, flag, room):
    assert load_of(f"run demo Hi {flag}", monkeypatch).options.get("cache_gb") == room
