"""What is found again after a crash or a new start: earlier prompts, theme and token style."""

import json
import threading
import time

import pytest
from driving import Chat, running
from localspec.tui.state import chat as chat_state
from localspec.tui.state.chat import LONGEST, Preferences, PromptHistory, Saver

from localspec.files import change_json_object

NESTED = pytest.param(b"[" * 100_000 + b"\n", id="nested too deep")


def test_prompts_are_walked_through_and_the_unsent_one_waits_at_the_end(tmp_path):
    for text in ("one", "one", "zwei\n drei", "x" * (LONGEST + 1), ""):
        PromptHistory(tmp_path).add(text)
    history = PromptHistory(tmp_path)
    assert history.newer() is None
    walked = [history.older("unsent"), history.older("zwei\n drei"), history.older("one")]
    assert walked == ["zwei\n drei", "one", None]
    assert [history.newer(), history.newer(), history.newer()] == ["zwei\n drei", "unsent", None]


def test_a_history_that_cannot_be_read_keeps_nobody_from_typing(tmp_path):
    (tmp_path / "chats.db").mkdir()
    assert PromptHistory(tmp_path).older("now") is None


@pytest.mark.parametrize(("columns", "inspects"), [(80, False), (120, True)])
async def test_the_inspector_comes_back_only_beside_the_conversation(tmp_path, columns, inspects):
    (tmp_path / "chat.json").write_text('{"inspector": true}')
    async with running(tmp_path, size=(columns, 30)) as chat:
        assert chat.screen.has_class("-inspecting") is inspects


async def test_the_choice_made_last_is_the_one_that_is_remembered(tmp_path, monkeypatch, chat):
    writing = threading.Lock()
    save = change_json_object
    seconds = iter([0.3, 0.0, 0.0])

    def slowly_at_first(path, chosen):
        assert writing.acquire(blocking=False), "two threads write one file"
        time.sleep(next(seconds))
        save(path, chosen)
        writing.release()

    monkeypatch.setattr(chat_state, "change_json_object", slowly_at_first)
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


async def test_a_damaged_file_of_choices_is_reported_and_kept(tmp_path):
    (tmp_path / "chat.json").write_text('{"theme": "nord",}')
    async with running(tmp_path) as chat:
        await chat.type("/tokens off")
        await chat.until(
            lambda: any("it is kept as chat.json.damaged" in reported for reported in chat.remarks)
        )
    assert (tmp_path / "chat.json.damaged").read_text() == '{"theme": "nord",}'
    assert not Preferences.load(tmp_path / "chat.json").colours


async def test_a_save_that_fails_in_an_unforeseen_way_costs_no_later_one():
    saver, saved = Saver(print), []

    def fail():
        raise ValueError("a mistake")

    for work in (fail, lambda: saved.append("theme"), lambda: saved.append("prompt")):
        saver.save(work)
    await saver.finish()
    assert saved == ["theme", "prompt"]
