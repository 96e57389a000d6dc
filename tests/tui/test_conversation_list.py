"""The list of conversations: opening, deleting, exporting and copying."""

import os
import sys
from contextlib import asynccontextmanager

import pytest
from driving import detail, open_conversations, running
from localspec.tui.dialogs import ConfirmDialog
from localspec.tui.lists import ConversationsDialog, describe_age
from localspec.tui.state.conversation import export_markdown
from localspec.tui.widgets.reply import ReplyView
from scripted_engine import Gate
from textual.widgets import DataTable

from localspec.chat.conversations import Conversation, Journal, StoredMessage
from localspec.errors import BadSetting


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_titles_give_way_to_pair_and_age_in_the_list_of_conversations(tmp_path, size, monkeypatch):
    monkeypatch.setattr("localspec.tui.lists.describe_age", lambda _seconds: "59 min")
    for n in range(30):
        journal = Journal(tmp_path / "conversations" / f"202501{n:02}-x.jsonl", "r1-distill-qwen-32b+1.5b")
        journal.add(StoredMessage("user", "How does drafting work, " + "and why " * 20))
        journal.close()
    async with running(tmp_path, size=(100, 30)) as chat:
        await open_conversations(chat, rows=30)
        await chat.pilot.resize_terminal(*size)
        await chat.pilot.pause()
        line = next(line for line in chat.drawn.splitlines() if "How does" in line)
        assert "…" in line
        assert "r1-distill-qwen-32b+1.5b" in line
        assert "59 min" in line
        assert ConversationsDialog.KEYS in chat.drawn


async def test_an_earlier_conversation_is_opened_from_the_list(tmp_path):
    async with running(tmp_path) as chat:
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


async def test_a_conversation_is_deleted_only_after_a_yes(tmp_path):
    async with running(tmp_path) as chat:
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


async def test_an_empty_conversation_stands_in_the_list_only_while_it_is_open(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("fail")  # a question that is refused and taken back
        await chat.until(lambda: chat.screen.prompt.text == "fail")
        await open_conversations(chat, rows=1)
        await chat.pilot.press("escape", "ctrl+n")
        await chat.ask("exact first")
        await open_conversations(chat, rows=1)
        assert "(open) exact first" in chat.drawn


async def delete(chat, n):
    """Delete the conversation in row n of the list."""
    await open_conversations(chat, rows=len(chat.saved))
    await chat.pilot.press(*["down"] * n, "ctrl+d")
    await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
    await chat.pilot.press("y")
    await chat.until(lambda: isinstance(chat.app.screen, ConversationsDialog))


async def test_a_deleted_conversation_takes_its_prompts_along_and_no_others(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact first secret")
        await chat.pilot.press("f8")
        await chat.type("exact changed secret")
        await chat.until(lambda: [m.content for m in chat.saved[0].messages][1:] == ["changed secret"])
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: not chat.state.conversation.messages)
        await chat.ask("exact harmless")
        await delete(chat, 1)
        await chat.until(lambda: len(chat.saved) == 1)
        await chat.pilot.press("escape", "up")
        assert chat.screen.prompt.text == "exact harmless"
        await chat.pilot.press("up")
        assert chat.screen.prompt.text == "exact harmless"
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"harmless" in left
    assert b"secret" not in left


async def test_a_conversation_that_cannot_be_deleted_stays_in_the_list(tmp_path, monkeypatch):
    def denied(_conversation, _forget):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("localspec.chat.conversations.delete", denied)
    async with running(tmp_path) as chat:
        await chat.ask("exact first")
        await chat.pilot.press("ctrl+n")
        await open_conversations(chat, rows=1)
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
        await chat.pilot.press("y")
        await chat.until(lambda: any("Permission denied" in note for note in chat.remarks))
        assert chat.app.screen.query_one(DataTable).row_count == 1


async def test_a_broken_file_is_named_in_the_list(tmp_path):
    folder = tmp_path / "conversations"
    folder.mkdir()
    (folder / "20200101-broken.jsonl").write_text("no json", "utf-8")
    async with running(tmp_path) as chat:
        await chat.pilot.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationsDialog))
        await chat.until(lambda: "20200101-broken" in detail(chat))
    assert (folder / "20200101-broken.jsonl").exists()


@pytest.mark.parametrize("name", ["~nobodyxyz/a.md", "n" * 300, "missing/a.md", "file/a.md", "a\0b", "."])
def test_an_export_that_cannot_be_written_says_why(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting) as refused:
        export_markdown(Conversation(tmp_path, 0.0, "demo", ""), name)
    assert refused.value.hint
    assert "None" not in str(refused.value)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_an_export_is_its_owners_only(tmp_path):
    assert (
        export_markdown(Conversation(tmp_path, 0.0, "demo", ""), str(tmp_path / "out.md")).stat().st_mode
        & 0o77
        == 0
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_an_export_that_is_cut_short_leaves_no_file(tmp_path):
    import resource

    long = Conversation(tmp_path, 0.0, "demo", "", (StoredMessage("user", "word " * 100_000),))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(BadSetting, match="too large"):
            export_markdown(long, str(tmp_path / "out.md"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


async def test_a_small_terminal_shows_the_beginning_of_a_title(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        await chat.ask("exact a title of twenty or more")
        await chat.pilot.press("ctrl+n")
        await open_conversations(chat, rows=1)
        assert "exact a title of twenty" in chat.drawn


async def test_an_export_that_cannot_be_written_leaves_the_chat_running(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact hi")
        for name in ("~nobodyxyz/a.md", "n" * 300):
            await chat.type(f"/export {name}")
            await chat.until(lambda name=name: any(name in note for note in chat.remarks))
        await chat.ask("exact still here")


async def test_export_and_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path) as chat:
        await chat.ask("why?")
        await chat.type("/export out.md")
        await chat.until(lambda: (tmp_path / "out.md").exists())
        assert "## You\n\nwhy?" in (tmp_path / "out.md").read_text("utf-8")
        await chat.type("/export out.md")
        await chat.until(lambda: any("exists already" in note for note in chat.remarks))
        await chat.type("/copy code")
        await chat.until(lambda: chat.app.clipboard.startswith("def accept(proposal, chosen):"))
        await chat.type("/copy")
        await chat.until(lambda: chat.app.clipboard == chat.state.conversation.messages[-1].content)


async def test_an_export_is_called_like_the_conversation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path) as chat:
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
        await chat.until(lambda: chat.state.engine.load_request.pair == str(file))
        yield chat, file


async def test_a_file_is_loaded_by_its_path(tmp_path):
    async with on_a_file(tmp_path) as (chat, _):
        await chat.type(f"/pair {tmp_path / 'missing.gguf'}")
        await chat.until(lambda: "missing.gguf does not" in chat.drawn)


async def test_a_conversation_knows_the_file_that_it_was_held_with(tmp_path):
    async with on_a_file(tmp_path) as (chat, file):
        await chat.ask("exact hi")
        await chat.type("/branch")
        await chat.until(lambda: len(chat.saved) == 2)
        assert [found.files for found in chat.saved] == [(str(file),)] * 2
        name = chat.state.conversation.journal.path.stem
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


def test_an_age_is_said_in_its_largest_unit():
    assert [describe_age(s) for s in (5, 120, 7200, 200_000)] == ["now", "2 min", "2 h", "2 d"]
