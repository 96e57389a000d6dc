"""What is found again after a crash or a new start: earlier prompts, theme and token style."""

import json
import os
import stat
import subprocess
import sys
import threading
import time

import pytest
from driving import Chat, running
from hypothesis import given, settings
from hypothesis import strategies as st
from localspec.tui.state import chat as chat_state
from localspec.tui.state.remembered import LIMIT, Preferences, PromptHistory, Saver

from localspec.files import change_json_object

PROMPTS = ["one", "zwei\n drei", "漢字 🙂"]


def written(folder):
    path = folder / "data" / "prompts.jsonl"
    history = PromptHistory.load(path)
    for text in PROMPTS:
        history.add(text)
    return path


@settings(max_examples=40)
@given(cut=st.integers(1, 80))
def test_a_history_cut_anywhere_loses_at_most_its_last_prompts_and_can_be_continued(tmp_path_factory, cut):
    path = written(tmp_path_factory.mktemp("h"))
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    whole_lines = path.read_bytes().count(b"\n")
    PromptHistory.load(path).add("and now?")
    entries = PromptHistory.load(path).entries
    assert entries[:whole_lines] == PROMPTS[:whole_lines]
    assert entries[-1] == "and now?"


NESTED = pytest.param(b"[" * 100_000 + b"\n", id="nested too deep")


@pytest.mark.parametrize("damage", [b'"torn pro\n', b"\xff\xfe\n", b"[1]\n", b"\n", b'{"a": "b"}\n', NESTED])
def test_a_damaged_line_costs_nothing_but_itself(tmp_path, damage):
    path = written(tmp_path)
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + b"".join(rest))
    assert PromptHistory.load(path).entries == PROMPTS


def test_only_the_newest_prompts_are_recalled(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(f"p{n}") + "\n" for n in range(LIMIT + 5)), "utf-8")
    assert PromptHistory.load(path).entries == [f"p{n}" for n in range(5, LIMIT + 5)]


def test_the_file_of_prompts_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.tui.state.remembered.MOST_LINES", 12)
    monkeypatch.setattr("localspec.tui.state.remembered.LIMIT", 5)
    path = tmp_path / "prompts.jsonl"
    for start in (0, 10, 20):
        history = PromptHistory.load(path)
        for n in range(start, start + 10):
            history.add(f"p{n}")
            assert path.read_bytes().count(b"\n") <= 12
    assert PromptHistory.load(path).entries == [f"p{n}" for n in range(25, 30)]
    assert set(os.listdir(tmp_path)) == {"prompts.jsonl", ".lock"}


ADD = """
import sys
from pathlib import Path
from localspec.tui.state import remembered
remembered.MOST_LINES = remembered.LIMIT = 40
history = remembered.PromptHistory.load(Path(sys.argv[1]))
for n in range(100):
    history.add(f"{sys.argv[2]} {n}")
"""


def test_chats_that_write_the_file_anew_lose_no_prompt_of_each_other(tmp_path):
    path = tmp_path / "prompts.jsonl"
    chats = [subprocess.Popen([sys.executable, "-c", ADD, str(path), name]) for name in "ab"]
    assert [chat.wait() for chat in chats] == [0, 0]
    lines = path.read_text("utf-8").splitlines()
    for name in "ab":
        numbers = [int(json.loads(line).split()[1]) for line in lines if line.startswith(f'"{name}')]
        assert numbers == list(range(100 - len(numbers), 100))


def test_prompts_that_are_forgotten_are_gone_from_the_file(tmp_path):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + b'"torn pro\n')
    history = PromptHistory.load(path)
    history.forget({"one", "漢字 🙂", "unknown"})
    assert history.entries == PromptHistory.load(path).entries == ["zwei\n drei"]
    assert b"torn" not in path.read_bytes()
    assert history.older("") == "zwei\n drei"


def test_forgetting_before_anything_was_typed_makes_no_file(tmp_path):
    PromptHistory.load(tmp_path / "prompts.jsonl").forget({"one"})
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permission bits")
def test_what_was_typed_and_chosen_belongs_to_its_owner_only(tmp_path):
    old = os.umask(0)
    try:
        path = written(tmp_path)
        change_json_object(path.with_name("chat.json"), {"theme": "nord"})
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert (stat.S_IMODE(path.parent.stat().st_mode), modes) == (0o700, {0o600})


@pytest.mark.parametrize(("columns", "inspects"), [(80, False), (120, True)])
async def test_the_inspector_comes_back_only_beside_the_conversation(tmp_path, columns, inspects):
    (tmp_path / "chat.json").write_text('{"inspector": true}')
    async with running(tmp_path, size=(columns, 30)) as chat:
        assert chat.screen.has_class("-inspecting") is inspects


async def test_the_choice_made_last_is_the_one_that_is_remembered(tmp_path, monkeypatch):
    writing = threading.Lock()
    save = change_json_object
    seconds = iter([0.3, 0.0, 0.0])

    def slowly_at_first(path, chosen):
        assert writing.acquire(blocking=False), "two threads write one file"
        time.sleep(next(seconds))
        save(path, chosen)
        writing.release()

    monkeypatch.setattr(chat_state, "change_json_object", slowly_at_first)
    async with running(tmp_path) as chat:
        await chat.pilot.press("f3", "f3")
        await chat.pilot.press("f2")
        await chat.until(lambda: not chat.state.preferences.colours)
        await chat.until(lambda: not Preferences.load(tmp_path / "chat.json").colours)


async def test_what_was_chosen_just_before_leaving_is_remembered(tmp_path, monkeypatch):
    save = change_json_object

    def slowly(path, chosen):
        time.sleep(0.2)
        save(path, chosen)

    monkeypatch.setattr(chat_state, "change_json_object", slowly)
    async with running(tmp_path) as chat:
        await chat.pilot.press("f3")
        await chat.pilot.press("f2", "ctrl+q")
    assert not Preferences.load(tmp_path / "chat.json").colours


@pytest.mark.parametrize("wrong", [["x"], {"a": "b"}, 5, None, "\x1b", 1.5])
async def test_a_choice_of_the_wrong_type_costs_that_choice_and_nothing_else(tmp_path, wrong):
    for name in ("theme", "colours", "inspector"):
        chosen = {"theme": "nord", "colours": False, "inspector": True} | {name: wrong}
        (tmp_path / "chat.json").write_text(json.dumps(chosen), "utf-8")
        app = Chat(tmp_path).app
        if name != "theme":
            assert app.theme == "nord"
        if name != "colours":
            assert not app.state.preferences.colours
        if name != "inspector":
            assert app.state.preferences.inspector


@pytest.mark.parametrize("content", [b"[1]", b"null", b"{", b"\xff", NESTED, b'{"theme": 1e999}'])
def test_a_file_of_choices_that_is_none_is_as_if_nothing_was_chosen(tmp_path, content):
    (tmp_path / "chat.json").write_bytes(content)
    assert Preferences.load(tmp_path / "chat.json") == Preferences()


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_chat_that_is_not_stored_leaves_nothing(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact earlier")
    before = contents(tmp_path)
    async with running(tmp_path, size=(80, 24), stored=False) as chat:
        assert "not stored" in chat.drawn.splitlines()[0]
        await chat.ask("exact secret")
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: chat.state.conversation.reply.versions)
        await chat.pilot.press("f5", "f2", "f8")
        await chat.type("exact another secret")
        await chat.until(lambda: chat.state.conversation.messages[-1].content == "another secret")
        await chat.type("/theme nord")
        await chat.type(f"/load {chat.saved[0].name}")
        await chat.until(lambda: chat.state.conversation.messages[0].content == "exact earlier")
        await chat.ask("exact more")
        await chat.pilot.press("up")
        assert chat.screen.prompt.text == "exact more"
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: chat.app._exit)
    assert contents(tmp_path) == before


async def test_two_chats_keep_what_each_of_them_chose(tmp_path):
    async with running(tmp_path) as one, running(tmp_path) as other:
        await one.type("/theme nord")
        await one.until(lambda: Preferences.load(tmp_path / "chat.json").theme == "nord")
        await other.type("/tokens off")
        await other.until(lambda: not Preferences.load(tmp_path / "chat.json").colours)
    assert Preferences.load(tmp_path / "chat.json").theme == "nord"


async def test_a_damaged_file_of_choices_is_told_and_kept(tmp_path):
    (tmp_path / "chat.json").write_text('{"theme": "nord",}')
    async with running(tmp_path) as chat:
        await chat.type("/tokens off")
        await chat.until(lambda: any("it is kept as chat.json.damaged" in told for told in chat.remarks))
    assert (tmp_path / "chat.json.damaged").read_text() == '{"theme": "nord",}'
    assert not Preferences.load(tmp_path / "chat.json").colours


async def test_the_choice_of_theme_and_colours_is_remembered(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/theme nord")
        await chat.type("/tokens off")
        await chat.until(lambda: not Preferences.load(tmp_path / "chat.json").colours)
    async with running(tmp_path) as chat:
        assert chat.app.theme == "nord"
        assert not chat.state.preferences.colours


async def test_a_save_that_fails_in_an_unforeseen_way_costs_no_later_one():
    saver, saved = Saver(print), []

    def fail():
        raise ValueError("a mistake")

    for work in (fail, lambda: saved.append("theme"), lambda: saved.append("prompt")):
        saver.save(work)
    await saver.finish()
    assert saved == ["theme", "prompt"]
