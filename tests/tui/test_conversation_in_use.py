"""A conversation that another terminal has open is left to it."""

import pytest
from driving import open_sessions, running
from localspec.tui.app import ChatApp, Setup
from localspec.tui.screens.dialog import Question
from scripted_engine import ScriptedEngine

from localspec import conversations
from localspec.conversations import ConversationInUse, Journal, Message


@pytest.fixture
def elsewhere(tmp_path):
    """A conversation, held as another process holds it."""
    journal = Journal(tmp_path / "conversations" / "20200101-000000-abcd.jsonl", "demo")
    journal.add(Message("user", "mine"))
    yield journal
    journal.close()


async def test_it_is_not_opened_from_the_list_until_it_is_left(tmp_path, elsewhere):
    async with running(tmp_path) as chat:
        await open_sessions(chat, rows=1)
        await chat.pilot.press("enter")
        await chat.until(lambda: any("open in another terminal" in remark for remark in chat.remarks))
        assert chat.screen.dialogue.messages == []
        elsewhere.close()
        await chat.type(f"/load {elsewhere.path.stem}")
        await chat.until(lambda: chat.screen.dialogue.messages == [Message("user", "mine")])


async def test_it_is_not_deleted(tmp_path, elsewhere):
    async with running(tmp_path) as chat:
        await open_sessions(chat, rows=1)
        await chat.pilot.press("d")
        await chat.until(lambda: isinstance(chat.app.screen, Question))
        await chat.pilot.press("y")
        await chat.until(lambda: any("open in another terminal" in note for note in chat.notices))
    assert elsewhere.path.exists()


def test_it_is_refused_before_the_screen_is_taken(tmp_path, elsewhere):
    engine = ScriptedEngine()
    resumed = conversations.read(elsewhere.path)
    with pytest.raises(ConversationInUse):
        ChatApp(Setup(engine, lambda: engine, tmp_path, resumed=resumed))


async def test_what_was_written_since_the_list_was_made_is_shown(tmp_path, elsewhere):
    async with running(tmp_path) as chat:
        await open_sessions(chat, rows=1)
        elsewhere.add(Message("assistant", "and more"))
        elsewhere.close()
        await chat.pilot.press("enter")
        await chat.until(lambda: len(chat.screen.dialogue.messages) == 2)


async def test_a_chat_that_is_left_holds_nothing(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        (first,) = chat.saved
        await chat.type(f"/load {first.name}")  # it is open already
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: not chat.screen.dialogue.messages)
        await chat.ask("exact two")
        conversations.resume(first.path)[0].close()
    for saved in chat.saved:
        conversations.resume(saved.path)[0].close()
    assert list((tmp_path / "conversations").glob("*.lock")) == []
