"""The list of conversations: opening, deleting, exporting and copying."""

import json
import os
import sys
from contextlib import asynccontextmanager

import pytest
from driving import detail, open_conversations, running, stored
from localspec.tui.dialogs import ConfirmDialog
from localspec.tui.lists import ConversationsDialog, describe_age
from localspec.tui.state.conversation import OpenConversation, write_export
from localspec.tui.widgets.reply import ReplyView
from scripted_engine import Gate, ScriptedEngine
from textual.widgets import DataTable

from localspec.cli import program
from localspec.cli.commands import chat as chat_command
from localspec.conversations import conversations
from localspec.conversations.conversations import Conversation, ConversationInUse, StoredMessage
from localspec.conversations.database import FILE
from localspec.errors import BadSetting


async def test_an_earlier_conversation_is_opened_from_the_list(chat):
    await chat.ask("exact first")
    await chat.pilot.press("ctrl+n")
    await chat.until(lambda: not chat.state.conversation.messages)
    await chat.ask("exact second")
    await open_conversations(chat, rows=2)
    table = chat.app.screen.query_one(DataTable)
    target = [table.get_row_at(n)[0].plain for n in range(2)].index("exact first")
    await chat.pilot.press(*["down"] * target, "enter")
    await chat.until(
        lambda: [m.content for m in chat.state.conversation.messages] == ["exact first", "first"]
    )
    await chat.until(lambda: len(chat.screen.query(ReplyView)) == 1)


async def test_a_conversation_is_deleted_only_after_a_yes(chat):
    await chat.ask("exact first")
    await chat.pilot.press("ctrl+n")
    for answer, left in (("n", 1), ("y", 0)):
        await open_conversations(chat, rows=1)
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
        await chat.pilot.press(answer)
        await chat.until(lambda left=left: len(chat.saved) == left)
        await chat.until(lambda: isinstance(chat.app.screen, ConversationsDialog))
        await chat.pilot.press("escape")


async def test_an_empty_conversation_does_not_stand_in_the_list_and_the_open_one_says_so(chat):
    await chat.type("fail")  # a question that is refused and taken back
    await chat.until(lambda: chat.screen.prompt.text == "fail")
    await open_conversations(chat, rows=0)
    assert detail(chat) == "No conversations yet."
    await chat.pilot.press("escape", "ctrl+n")
    await chat.ask("exact first")
    await open_conversations(chat, rows=1)
    assert "(open) exact first" in chat.drawn


async def test_a_conversation_that_cannot_be_deleted_stays_in_the_list(monkeypatch, chat):
    def denied(_folder, _name):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("localspec.conversations.conversations.delete", denied)
    await chat.ask("exact first")
    await chat.pilot.press("ctrl+n")
    await open_conversations(chat, rows=1)
    await chat.pilot.press("ctrl+d")
    await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
    await chat.pilot.press("y")
    await chat.until(lambda: any("Permission denied" in note for note in chat.remarks))
    assert chat.app.screen.query_one(DataTable).row_count == 1


async def test_typing_finds_conversations_by_the_words_of_their_messages(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.tui.lists.MOST_ROWS", 3)
    for n in range(5):
        stored(tmp_path, StoredMessage("user", f"question {n}"), StoredMessage("assistant", f"Ünder {n}{n}"))
    async with running(tmp_path) as chat:
        await open_conversations(chat, rows=3)
        assert detail(chat).startswith("The latest 3 conversations; type")
        await chat.pilot.press(*"ünder 11")
        await chat.until(lambda: chat.app.screen.query_one(DataTable).row_count == 1)
        await chat.pilot.press(*"1")
        await chat.until(lambda: detail(chat) == "No conversation has these words.")


async def test_a_file_of_conversations_that_cannot_be_used_is_reported_and_the_chat_goes_on(tmp_path):
    (tmp_path / FILE).mkdir()
    async with running(tmp_path) as chat:
        await chat.pilot.press("ctrl+s")
        await chat.until(lambda: FILE in detail(chat))
        await chat.pilot.press("escape")
        await chat.ask("exact one")
        assert "could not be saved" in chat.notices[0]
        (tmp_path / FILE).rmdir()
        await chat.ask("exact two")
        assert [message.content for message in chat.saved[0].messages][:2] == ["exact one", "one"]


async def test_what_the_store_tells_stands_in_the_chat(tmp_path):
    (tmp_path / FILE).write_text("no database")
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        await chat.until(lambda: any("was damaged" in reported for reported in chat.remarks))
        assert len(chat.saved) == 1


@pytest.mark.parametrize("name", ["~nobodyxyz/a.md", "n" * 300, "missing/a.md", "file/a.md", "a\0b", "."])
def test_an_export_that_cannot_be_written_says_why(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting) as refused:
        write_export(Conversation("a", "demo"), name)
    assert refused.value.hint
    assert "None" not in str(refused.value)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_an_export_is_its_owners_only(tmp_path):
    assert write_export(Conversation("a", "demo"), str(tmp_path / "out.md")).stat().st_mode & 0o77 == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_an_export_that_is_cut_short_leaves_no_file(tmp_path):
    import resource

    long = Conversation("a", "demo", "", (StoredMessage("user", "word " * 100_000),))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(BadSetting, match="too large"):
            write_export(long, str(tmp_path / "out.md"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


async def test_export_and_copy(tmp_path, monkeypatch, chat):
    monkeypatch.chdir(tmp_path)
    await chat.ask("why?")
    await chat.type("/export out.md")
    await chat.until(lambda: (tmp_path / "out.md").exists())
    assert "## You\n\nwhy?" in (tmp_path / "out.md").read_text("utf-8")
    await chat.type("/export out.md")
    await chat.until(lambda: any("exists already" in note for note in chat.remarks))
    await chat.type("/export out.json")
    await chat.until(lambda: (tmp_path / "out.json").exists())
    assert "why?" in json.loads((tmp_path / "out.json").read_text("utf-8"))["messages"][0]["content"]
    await chat.type("/copy code")
    await chat.until(lambda: chat.app.clipboard.startswith("def accept(proposal, chosen):"))
    await chat.type("/copy")
    await chat.until(lambda: chat.app.clipboard == chat.state.conversation.messages[-1].content)


async def test_an_export_is_called_like_the_conversation(tmp_path, monkeypatch, chat):
    monkeypatch.chdir(tmp_path)
    await chat.ask("Why, at all?")
    await chat.type("/export")
    await chat.until(lambda: (tmp_path / "why-at-all.md").exists())
    await chat.type("/export")
    await chat.until(lambda: (tmp_path / "why-at-all-2.md").exists())


@asynccontextmanager
async def on_a_file(folder):
    """A chat that has loaded a file of the user's by its path."""
    file = folder / "mine.gguf"
    file.write_bytes(b"GGUF")
    async with running(folder) as chat:
        await chat.type(f"/pair {file}")
        await chat.until(lambda: chat.state.engine.files == (str(file),))
        yield chat, file


async def test_a_file_is_loaded_by_its_path(tmp_path):
    async with on_a_file(tmp_path) as (chat, _):
        await chat.type(f"/pair {tmp_path / 'missing.gguf'}")
        await chat.until(lambda: "missing.gguf does not" in chat.drawn)


async def test_a_conversation_knows_the_file_that_it_was_held_with(tmp_path):
    async with on_a_file(tmp_path) as (chat, file):
        await chat.ask("exact hi")
        assert chat.saved[0].files == (str(file),)
        name = chat.state.conversation.about.name
        await chat.type("/pair demo")
        await chat.until(lambda: chat.state.engine.ready and chat.state.engine.pair_name == "demo")
        await chat.pilot.press("ctrl+n")
        await chat.type(f"/load {name}")
        await chat.until(lambda: any(f"/pair {file} loads" in notice for notice in chat.notices))


async def test_a_reply_that_runs_is_not_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.busy)
        await chat.type("/export out.md")
        await chat.until(lambda: chat.remarks)
        assert not chat.notices
        assert not (tmp_path / "out.md").exists()


def test_an_age_is_reported_in_its_largest_unit():
    assert [describe_age(s) for s in (5, 120, 7200, 200_000)] == ["now", "2 min", "2 h", "2 d"]


@pytest.fixture
def elsewhere(tmp_path):
    """A conversation, held as another process holds it."""
    talk = stored(tmp_path, StoredMessage("user", "mine"), name="20200101-000000-abcd")
    held = OpenConversation.resumed(tmp_path, *conversations.resume(tmp_path, talk.name), stored=True)
    yield held
    held.close()


async def test_it_is_not_opened_from_the_list_until_it_is_left(elsewhere, chat):
    await open_conversations(chat, rows=1)
    await chat.pilot.press("enter")
    await chat.until(lambda: any("open in another terminal" in notice for notice in chat.notices))
    assert chat.state.conversation.messages == []
    elsewhere.close()
    await chat.type(f"/load {elsewhere.about.name}")
    await chat.until(lambda: chat.state.conversation.messages == [StoredMessage("user", "mine")])


@pytest.mark.nightly
async def test_no_width_ends_the_question_about_a_deletion(tmp_path):
    stored(tmp_path, StoredMessage("user", "mine"), name="20200101-000000-abcd")
    async with running(tmp_path, size=(80, 24)) as chat:
        await open_conversations(chat, rows=1)
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
        for width in (*range(20, 0, -1), 80):
            await chat.pilot.resize_terminal(width, 24)
            await chat.settled()
        await chat.pilot.press("y")
        await chat.until(lambda: not conversations.listing(tmp_path))


@pytest.fixture
def resume(tmp_path, home_of_processes, monkeypatch):
    """Runs `localspec chat --resume` on a scripted engine, which `started` lists once it runs."""
    started = []
    (home_of_processes / "data").symlink_to(tmp_path)
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
        resume(elsewhere.about.name, "--temperature", "-3")
    conversations.hold(elsewhere.folder, elsewhere.about.name).release()


async def test_what_was_written_since_the_list_was_made_is_shown(elsewhere, chat):
    await open_conversations(chat, rows=1)
    await elsewhere.add(StoredMessage("assistant", "and more"))
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
        conversations.hold(tmp_path, first.name).release()
    for saved in chat.saved:
        conversations.hold(tmp_path, saved.name).release()
    assert list((tmp_path / "conversations").glob("*.lock")) == []
