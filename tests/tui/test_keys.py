"""Keys that newcomers press: to scroll, to stop, to leave, and words that other programs know."""

import math
import signal
import sys
from types import SimpleNamespace

import pytest
from driving import footer, messages, running, stored
from localspec.tui.app import ChatApp
from localspec.tui.commands import table
from localspec.tui.commands.table import BUSY
from localspec.tui.lists import PairsDialog
from localspec.tui.screen import ChatScreen
from localspec.tui.widgets.lines import Inspector, Line
from scripted_engine import ESSAY, Gate
from scripted_pairs import called
from textual.events import Key
from textual.widgets import Input

from localspec.conversations.conversations import StoredMessage
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
    turns = [(StoredMessage("user", f"question {n}"), StoredMessage("assistant", LONG)) for n in range(4)]
    talk = stored(tmp_path, *(message for turn in turns for message in turn))
    async with running(tmp_path) as chat:
        await chat.type("/load " + talk.name)
        transcript = chat.screen.transcript
        await chat.until(lambda: transcript.max_scroll_y and transcript.scroll_y == transcript.max_scroll_y)
        await chat.pilot.press(*"half a")
        await chat.pilot.press("pageup")
        await chat.until(lambda: 10 < transcript.max_scroll_y - transcript.scroll_y < 30)
        await press_until(chat, "pageup", lambda: "question 3" in chat.drawn)
        await press_until(chat, "pagedown", lambda: transcript.scroll_y == transcript.max_scroll_y)
        assert chat.screen.prompt.text == "half a"
        await chat.pilot.press("tab", "x")
        assert chat.screen.prompt.text == "half ax"


async def test_ctrl_c_stops_then_tells_how_to_leave_and_then_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.tui.app.monotonic", lambda: 100.0)
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await chat.begin("why?", cycles=3)
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: chat.replies and footer(chat.replies[0]).startswith("stopped"))
        assert chat.remarks == []
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: chat.remarks)
        assert "Press ^c again" in chat.remarks[0]
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: chat.app._exit)


async def test_ctrl_c_clears_what_is_typed_as_in_a_shell_and_undo_brings_it_back(chat):
    await chat.pilot.press("a", "b", "ctrl+c")
    await chat.until(lambda: chat.screen.prompt.text == "" and chat.remarks == ["^z brings the text back."])
    await chat.pilot.press("ctrl+z")
    assert chat.screen.prompt.text == "ab"
    await chat.pilot.press("ctrl+c", "ctrl+c")
    assert "Press ^c again" in chat.remarks[-1]
    await chat.ask("exact one")
    await chat.pilot.press("x", "f8", "ctrl+c")
    await chat.until(lambda: chat.screen.editing is None and chat.screen.prompt.text == "x")


async def test_a_notice_ends_at_the_next_key_or_with_the_reply_that_it_is_about(tmp_path):
    gate = Gate(hold_after=3)
    async with running(tmp_path, gate=gate) as chat:
        await chat.type("/nonsense")
        await chat.until(lambda: "There is no command /nonsense" in chat.drawn)
        chat.screen._remarked_at = math.inf  # as if no time passed
        await chat.pilot.press("x")
        await chat.until(lambda: "There is no command" not in chat.drawn)
        await chat.pilot.press("ctrl+u")
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.busy)
        await chat.type("and?")
        await chat.until(lambda: BUSY in chat.drawn)
        chat.screen._remarked_at = math.inf
        gate.opened.set()
        await chat.until(lambda: not chat.state.engine.busy and BUSY not in chat.drawn)
        assert chat.screen._notice  # no key has ended it


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


async def test_ctrl_d_deletes_and_leaves_only_from_an_empty_prompt(chat):
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


WORDS = {"exit": "quit", "bye": "quit", "clear": "new", "model": "pair", "save": "export", "resume": "load"}


@pytest.mark.parametrize(("word", "name"), WORDS.items())
def test_words_of_other_programs_are_known(word, name):
    assert table.find(word).name == name
    assert name in [command.name for command in table.matching(word)]


async def test_five_lines_of_a_reply_are_seen_at_40_by_12(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        await chat.ask("exact " + "- line of the reply\n" * 30)
        await chat.pilot.pause()
        assert sum("line of the reply" in row for row in chat.drawn.splitlines()) >= 5, chat.drawn


async def test_wide_characters_of_a_name_are_counted_by_their_cells(tmp_path):
    async with running(
        tmp_path, size=(40, 24), until_ready=False, load=LoadPair(called("模型" * 12))
    ) as chat:
        await chat.until(lambda: chat.app.screen_stack and chat.app.screen.query("#title"))
        await chat.until(lambda: "模型" in chat.drawn.splitlines()[0])
        assert chat.screen.query_one("#title", Line).content.cell_length <= 38


def test_only_a_character_for_a_field_is_text_and_a_letter_without_a_focus_is_a_key():
    field = SimpleNamespace(check_consume_key=lambda key, character: True)
    for focused, event, is_text in (
        (field, Key("x", "x"), True),
        (None, Key("x", "x"), False),
        (field, Key("f8", None), False),
    ):
        assert ChatApp._is_text(SimpleNamespace(focused=focused), event) is is_text


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
async def test_keys_that_come_together_change_the_prompt_in_their_order(keys, text, chat):
    chat.screen.prompt.replace_text("old text")
    press_together(chat, *keys)
    await chat.until(lambda: chat.screen.prompt.text == text)


async def test_keys_that_come_together_send_each_message_once(chat):
    await chat.ask("exact yes")
    press_together(chat, "f8", "f8", "ctrl+u", *"exact", "space", "n", "o", "enter", *"next")
    await chat.until(lambda: messages(chat) == ["exact no", "no"])
    await chat.until(lambda: chat.screen.prompt.text == "next")


async def test_keys_that_come_together_filter_the_list_that_they_open(chat):
    press_together(chat, "ctrl+o", *"16", "backspace", "backspace", *"qwen3")
    await chat.until(lambda: isinstance(chat.app.screen, PairsDialog))
    await chat.until(lambda: chat.app.screen.query_one(Input).value == "qwen3")
    press_together(chat, "home", "x", "escape", *"typed")
    await chat.until(lambda: chat.screen.prompt.text == "typed")
    assert isinstance(chat.app.screen, ChatScreen)


@pytest.mark.parametrize("leave", ["key", "command", "signal"])
async def test_leaving_in_mid_reply_keeps_its_text_as_stopped_without_waiting_for_the_engine(leave, tmp_path):
    if leave == "signal" and sys.platform == "win32":
        pytest.skip("Windows ends a program without telling it")
    async with running(tmp_path, gate=Gate(hold_after=9)) as chat:
        await chat.begin("why?", cycles=9)
        if leave == "key":
            await chat.pilot.press("ctrl+q")
        elif leave == "command":
            await chat.type("/quit")
        else:
            signal.raise_signal(signal.SIGTERM)
        await chat.until(lambda: chat.app._exit)
        question, kept = chat.saved[0].messages
        assert question.content == "why?"
        assert kept.outcome == "cancelled"
        assert kept.content
        assert ESSAY.startswith(kept.content)


async def test_leaving_before_the_first_word_keeps_the_question(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=0)) as chat:
        await chat.begin("why?", cycles=0)
        await chat.pilot.press("ctrl+q")
        assert [m.content for m in chat.saved[0].messages] == ["why?"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a program without telling it")
async def test_a_terminal_that_is_closed_leaves_the_conversation_to_others(tmp_path, monkeypatch, chat):
    await chat.ask("why?")
    with monkeypatch.context() as patch:
        raised = []
        patch.setattr(signal, "signal", lambda *_: None)
        patch.setattr(signal, "raise_signal", raised.append)
        await chat.app._hang_up()
    assert raised == [signal.SIGHUP]
    assert list((tmp_path / "conversations").glob("*.lock")) == []
