"""A conversation that another terminal has open is left to it."""

import pytest
from driving import open_conversations, running
from localspec.tui.dialogs import ConfirmDialog
from scripted_engine import ScriptedEngine

from localspec.chat import conversations
from localspec.chat.conversations import ConversationInUse, Journal, StoredMessage
from localspec.cli import program
from localspec.cli.commands import chat as chat_command
from localspec.errors import BadSetting


@pytest.fixture
def elsewhere(tmp_path):
    """A conversation, held as another process holds it."""
    journal = Journal(tmp_path / "conversations" / "20200101-000000-abcd.jsonl", "demo")
    journal.add(StoredMessage("user", "mine"))
    yield journal
    journal.close()


async def test_it_is_not_opened_from_the_list_until_it_is_left(tmp_path, elsewhere):
    async with running(tmp_path) as chat:
        await open_conversations(chat, rows=1)
        await chat.pilot.press("enter")
        await chat.until(lambda: any("open in another terminal" in notice for notice in chat.notices))
        assert chat.state.conversation.messages == []
        elsewhere.close()
        await chat.type(f"/load {elsewhere.path.stem}")
        await chat.until(lambda: chat.state.conversation.messages == [StoredMessage("user", "mine")])


async def test_it_is_not_deleted(tmp_path, elsewhere):
    async with running(tmp_path) as chat:
        await open_conversations(chat, rows=1)
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
        await chat.pilot.press("y")
        await chat.until(lambda: any("open in another terminal" in note for note in chat.remarks))
    assert elsewhere.path.exists()


@pytest.fixture
def resume(tmp_path, monkeypatch):
    """Runs `localspec chat --resume` on a scripted engine, which `started` lists once it runs."""
    started = []
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setattr("localspec.options.data_dir", lambda: tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    def make():
        started.append(ScriptedEngine())
        return started[-1]

    monkeypatch.setattr("localspec.engine.client.EngineProcess", make)

    def run(*options):
        chat_command.run(program.parser().parse_args(["chat", "--resume", *options]))

    run.started = started
    return run


def test_it_is_refused_before_a_model_is_loaded(resume, elsewhere):
    with pytest.raises(ConversationInUse):
        resume()
    assert resume.started == []


def test_a_chat_that_does_not_open_leaves_it_to_others(resume, elsewhere):
    elsewhere.close()
    with pytest.raises(BadSetting):
        resume(elsewhere.path.stem, "--temperature", "-3")
    assert not elsewhere.path.with_suffix(".lock").exists()


async def test_what_was_written_since_the_list_was_made_is_shown(tmp_path, elsewhere):
    async with running(tmp_path) as chat:
        await open_conversations(chat, rows=1)
        elsewhere.add(StoredMessage("assistant", "and more"))
        elsewhere.close()
        await chat.pilot.press("enter")
        await chat.until(lambda: len(chat.state.conversation.messages) == 2)


async def test_a_chat_that_is_left_holds_nothing(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        (first,) = chat.saved
        await chat.type(f"/load {first.name}")  # it is open already
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: not chat.state.conversation.messages)
        await chat.ask("exact two")
        conversations.resume(first.path)[0].close()
    for saved in chat.saved:
        conversations.resume(saved.path)[0].close()
    assert list((tmp_path / "conversations").glob("*.lock")) == []
