"""Keys that newcomers press: to scroll, to stop, to leave, and words that other programs know."""

import pytest
from driving import footer, messages, resumed_with, running
from localspec.tui.commands import table
from localspec.tui.lists import PairsDialog
from localspec.tui.screen import ChatScreen
from localspec.tui.widgets.lines import Inspector, Line
from scripted_engine import Gate
from textual.events import Key
from textual.widgets import Input

from localspec.chat.conversations import Journal, StoredMessage
from localspec.engine.messages import LoadPair

LONG = "One line of text.\n\n" * 60


async def press_until(chat, key, condition):
    for _ in range(9):
        await chat.pilot.press(key)
        await chat.settled()
        if condition():
            return
    raise AssertionError(f"{key} does not get there")


async def test_the_conversation_scrolls_from_the_prompt(tmp_path):
    journal = Journal.new(tmp_path / "conversations", "demo", "")
    for n in range(4):
        journal.add(StoredMessage("user", f"question {n}"))
        journal.add(StoredMessage("assistant", LONG, outcome="stop"))
    journal.close()
    async with running(tmp_path) as chat:
        await chat.type("/load " + journal.path.stem)
        transcript = chat.screen.transcript
        await chat.until(lambda: transcript.max_scroll_y and transcript.scroll_y == transcript.max_scroll_y)
        await chat.pilot.press(*"half a")
        await chat.pilot.press("pageup")
        await chat.until(lambda: 10 < transcript.max_scroll_y - transcript.scroll_y < 30)
        for question in ("question 3", "question 2"):
            await press_until(chat, "ctrl+up", lambda question=question: question in chat.drawn)
        await press_until(chat, "ctrl+down", lambda: transcript.scroll_y == transcript.max_scroll_y)
        assert chat.screen.prompt.text == "half a"
        await chat.pilot.press("tab", "x")
        assert chat.screen.prompt.text == "half ax"


async def test_ctrl_c_stops_then_tells_how_to_leave_and_then_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.tui.app.monotonic", lambda: 100.0)
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 3)
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: chat.replies and footer(chat.replies[0]).startswith("stopped"))
        assert chat.remarks == []
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: chat.remarks)
        assert "^c again leaves" in chat.remarks[0]
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: chat.app._exit)


async def test_ctrl_c_clears_what_is_typed_as_in_a_shell_and_undo_brings_it_back(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press("a", "b", "ctrl+c")
        await chat.until(
            lambda: chat.screen.prompt.text == "" and chat.remarks == ["^z brings the text back."]
        )
        await chat.pilot.press("ctrl+z")
        assert chat.screen.prompt.text == "ab"
        await chat.pilot.press("ctrl+c", "ctrl+c")
        assert "^c again leaves" in chat.remarks[-1]
        await chat.ask("exact one")
        await chat.pilot.press("x", "f8", "ctrl+c")
        await chat.until(lambda: chat.screen.editing is None and chat.screen.prompt.text == "x")


@pytest.mark.parametrize("size", [(100, 20), (40, 12)])
async def test_page_keys_scroll_the_inspector_and_escape_closes_it(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await chat.ask("exact " + LONG)
        await chat.pilot.press("f3")
        inspector, transcript = chat.screen.query_one(Inspector), chat.screen.transcript
        await chat.until(lambda: inspector.max_scroll_y)
        await press_until(chat, "pagedown", lambda: inspector.scroll_y == inspector.max_scroll_y)
        assert transcript.scroll_y == transcript.max_scroll_y
        await press_until(chat, "pageup", lambda: inspector.scroll_y == 0)
        if size[0] == 100:
            await press_until(chat, "pageup", lambda: transcript.scroll_y < transcript.max_scroll_y)
        await chat.pilot.press("escape")
        await chat.until(lambda: not inspector.display and not chat.state.preferences.inspector)


async def test_ctrl_d_deletes_and_leaves_only_from_an_empty_prompt(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press("a", "b", "home", "ctrl+d", "end", "ctrl+d")
        assert chat.screen.prompt.text == "b"
        await chat.pilot.press("backspace", "ctrl+d")
        await chat.until(lambda: not chat.app.is_running)


async def test_up_and_down_stay_in_a_wrapped_paragraph(tmp_path):
    async with running(tmp_path, size=(40, 24)) as chat:
        await chat.ask("exact one")
        text = "word " * 30
        chat.screen.prompt.replace_text(text)
        await chat.pilot.press("up", "up")
        assert chat.screen.prompt.text == text
        await chat.pilot.press("down")
        assert chat.screen.prompt.text == text
        await chat.pilot.press("up", "up", "up", "up")
        assert chat.screen.prompt.text == "exact one"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("exit", "quit"),
        ("bye", "quit"),
        ("clear", "new"),
        ("model", "pair"),
        ("save", "export"),
        ("resume", "load"),
    ],
)
def test_words_of_other_programs_are_known(word, name):
    assert table.find(word).name == name
    assert name in [command.name for command in table.matching(word)]


async def test_five_lines_of_a_reply_are_seen_at_40_by_12(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        await chat.ask("exact " + "- line of the reply\n" * 30)
        await chat.pilot.pause()
        assert sum("line of the reply" in row for row in chat.drawn.splitlines()) >= 5, chat.drawn
        await chat.pilot.press("f8")
        await chat.until(lambda: "changing message 1 of 1" in chat.drawn)
        assert isinstance(chat.app.screen, ChatScreen)


async def test_a_reply_that_streams_is_seen_at_40_by_12(tmp_path):
    async with running(tmp_path, size=(40, 12), gate=Gate(hold_after=20)) as chat:
        await chat.type("exact " + "word\n" * 200)
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 20)
        await chat.until(lambda: sum("word" in row for row in chat.drawn.splitlines()) >= 5)
        chat.engine.handler.gate.opened.set()


async def test_wide_characters_of_a_name_are_counted_by_their_cells(tmp_path):
    async with running(tmp_path, size=(40, 24), until_ready=False, load=LoadPair(pair="模型" * 12)) as chat:
        await chat.until(lambda: chat.app.screen_stack and chat.app.screen.query("#title"))
        await chat.until(lambda: "模型" in chat.drawn.splitlines()[0])
        assert chat.screen.query_one("#title", Line).content.cell_length <= 38


async def test_a_resumed_conversation_opens_at_its_end(tmp_path):
    async with running(tmp_path, resumed=resumed_with(tmp_path, LONG)) as chat:
        transcript = chat.screen.transcript
        await chat.until(lambda: chat.replies[0].finished_parts[-1].is_drawn)
        await chat.until(lambda: transcript.max_scroll_y and transcript.scroll_y == transcript.max_scroll_y)


def press_together(chat, *keys):
    """Send keys as they come from a paste, a slow line or a fast hand: all at once."""
    for key in keys:
        chat.app._driver.send_message(Key(key, " " if key == "space" else key if len(key) == 1 else None))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("backspace",) * 4 + tuple("NEWX"), "old NEWX"),
        (("home", *"NEW_"), "NEW_old text"),
        (("x", "left", "y", "home", "z", "end", "backspace", "w"), "zold textyw"),
        (("ctrl+u", *"new", "ctrl+z", "ctrl+z", "!"), "old text!"),
        (("ctrl+c", *"new"), "new"),
    ],
)
async def test_keys_that_come_together_change_the_prompt_in_their_order(tmp_path, keys, text):
    async with running(tmp_path) as chat:
        chat.screen.prompt.replace_text("old text")
        press_together(chat, *keys)
        await chat.until(lambda: chat.screen.prompt.text == text, seconds=10)


async def test_keys_that_come_together_send_each_message_once(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        press_together(chat, "f8", "f8", "ctrl+u", *"exact", "space", "n", "o", "enter", *"next")
        await chat.until(lambda: messages(chat) == ["exact no", "no"])
        await chat.until(lambda: chat.screen.prompt.text == "next")


async def test_keys_that_come_together_filter_the_list_that_they_open(tmp_path):
    async with running(tmp_path) as chat:
        press_together(chat, "ctrl+o", *"16", "backspace", "backspace", *"qwen3")
        await chat.until(lambda: isinstance(chat.app.screen, PairsDialog))
        await chat.until(lambda: chat.app.screen.query_one(Input).value == "qwen3")
        press_together(chat, "home", "x", "escape", *"typed")
        await chat.until(lambda: chat.screen.prompt.text == "typed")
        assert isinstance(chat.app.screen, ChatScreen)
