"""The dialogs: pairs, conversations, help, themes and the palette; and the command table behind them."""

import os
from itertools import pairwise

import pytest
from driving import cannot_start, open_sessions, running
from localspec.tui.commands import COMMANDS, find, matching
from localspec.tui.exporting import NotExported, export
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.dialog import Question
from localspec.tui.screens.help import HelpScreen, page
from localspec.tui.screens.pairs import PairsScreen
from localspec.tui.screens.sessions import SessionsScreen, describe_age
from localspec.tui.screens.themes import ThemesScreen
from localspec.tui.widgets.lines import TitleBar
from localspec.tui.widgets.reply_view import ReplyView
from scripted_engine import Gate
from textual.widgets import DataTable, Static, TextArea

from localspec.conversations import Conversation, Journal, Message
from localspec.engine.messages import Load, Pull


def detail(chat):
    return str(chat.app.screen.query_one(".detail", Static).content)


def row(table, name):
    rows = [[cell.plain for cell in table.get_row_at(n)] for n in range(table.row_count)]
    return next(row for row in rows if row[0] == name)


async def open_pairs(chat):
    await chat.pilot.press("ctrl+o")
    await chat.until(lambda: isinstance(chat.app.screen, PairsScreen))
    await chat.until(lambda: chat.app.screen.query_one(DataTable).row_count == 26)


async def test_the_picker_says_what_is_here_what_fits_and_what_it_brought(tmp_path):
    async with running(tmp_path) as chat:
        await open_pairs(chat)
        table = chat.app.screen.query_one(DataTable)
        assert row(table, "demo") == ["demo", "5.2 MB", "40.0 MB", "in RAM", "yes", "1.42x"]
        assert row(table, "llama-3-70b+8b")[3] == "no"
        assert row(table, "qwen3-8b-eagle3")[3] == "not yet"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_keys_and_columns_of_the_picker_are_in_view_whatever_row_is_chosen(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await open_pairs(chat)
        for key in ("down", "down", "ctrl+end"):
            await chat.pilot.press(key)
            await chat.pilot.pause(0.2)
            assert PairsScreen.KEYS in chat.drawn
            assert "speed-up" in chat.drawn
        assert "qwen3-8b-eagle3" in chat.drawn


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_titles_give_way_to_pair_and_age_in_the_list_of_conversations(tmp_path, size, monkeypatch):
    monkeypatch.setattr("localspec.tui.screens.sessions.describe_age", lambda _seconds: "59 min")
    for n in range(30):
        journal = Journal(tmp_path / "conversations" / f"202501{n:02}-x.jsonl", "r1-distill-qwen-32b+1.5b")
        journal.add(Message("user", "How does drafting work, " + "and why " * 20))
        journal.close()
    async with running(tmp_path, size=(100, 30)) as chat:
        await open_sessions(chat, rows=30)
        await chat.pilot.resize_terminal(*size)
        await chat.pilot.pause()
        line = next(line for line in chat.drawn.splitlines() if "How does" in line)
        assert "…" in line
        assert "r1-distill-qwen-32b+1.5b" in line
        assert "59 min" in line
        assert SessionsScreen.KEYS in chat.drawn


@pytest.mark.parametrize(("command", "screen"), [("/help", HelpScreen), ("/theme", ThemesScreen)])
async def test_the_keys_of_a_long_dialog_are_in_view(tmp_path, command, screen):
    async with running(tmp_path, size=(80, 24)) as chat:
        await chat.type(command)
        await chat.until(lambda: isinstance(chat.app.screen, screen) and screen.KEYS in chat.drawn)
        await chat.pilot.press("end")
        await chat.pilot.pause()
        assert screen.KEYS in chat.drawn
        assert ("files" if screen is HelpScreen else "tokyo-night") in chat.drawn


async def test_enter_loads_a_pair_that_is_here(tmp_path):
    async with running(tmp_path) as chat:
        await open_pairs(chat)
        await chat.pilot.press("down", "enter")
        await chat.until(
            lambda: chat.app.conductor.ready and chat.app.conductor.ready.pair == "qwen3-8b+0.6b"
        )
        assert isinstance(chat.app.screen, ChatScreen)


async def test_enter_fetches_a_pair_that_is_not_here_and_the_chat_goes_on(tmp_path):
    gate = Gate(hold_after=3)
    async with running(tmp_path, gate=gate) as chat:
        await open_pairs(chat)
        await chat.pilot.press("down", "down", "enter")
        await chat.until(lambda: "20%" in detail(chat))
        await chat.pilot.press("escape")
        gate.opened.set()
        await chat.ask("exact hi")
        await chat.until(lambda: any("is on disk" in remark for remark in chat.remarks))
        assert chat.librarian.workshop.asked[1] == Pull(1, "llama-3-8b+1b")


async def test_the_cursor_stays_on_the_pair_that_was_fetched(tmp_path):
    async with running(tmp_path) as chat:
        await open_pairs(chat)
        table = chat.app.screen.query_one(DataTable)
        await chat.pilot.press(*["down"] * 6, "p")
        await chat.until(lambda: row(table, "qwen2.5-14b+0.5b")[4] == "yes")
        assert table.get_row_at(table.cursor_row)[0].plain == "qwen2.5-14b+0.5b"
        assert table.cursor_row == 2
        await chat.until(lambda: "Enter loads it" in detail(chat))


async def test_a_pair_that_is_missing_is_fetched_and_then_loaded(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/pair llama-3-8b+1b")
        await chat.until(lambda: any("/pull" in remark for remark in chat.remarks))
        await chat.type("/pull")
        await chat.until(lambda: chat.app.conductor.ready)
        assert chat.app.conductor.ready.pair == "llama-3-8b+1b"


async def test_a_configured_pair_that_is_not_here_is_fetched_by_pull_without_a_name(tmp_path):
    async with running(tmp_path, until_ready=False, load=Load(pair="llama-3-8b+1b")) as chat:
        await chat.until(lambda: any("/pull" in remark for remark in chat.remarks))
        await chat.type("/pull")
        await chat.until(lambda: chat.app.conductor.ready)
        assert chat.app.conductor.ready.pair == "llama-3-8b+1b"


async def test_a_missing_pair_is_fetched_at_once_when_that_was_asked_for(tmp_path):
    async with running(tmp_path, until_ready=False, load=Load(pair="llama-3-8b+1b"), pull=True) as chat:
        await chat.until(lambda: chat.app.conductor.ready)
        assert chat.app.conductor.ready.pair == "llama-3-8b+1b"


async def test_the_chat_goes_on_when_the_process_that_fetches_pairs_cannot_start(tmp_path, monkeypatch):
    async with running(tmp_path) as chat:
        await open_pairs(chat)
        monkeypatch.setattr(chat.librarian, "start", cannot_start)
        chat.librarian.close()
        await chat.pilot.press("down", "down", "p")
        await chat.until(lambda: any("cannot fork" in note for note in chat.notices))
        assert chat.app.librarian.progress is None
        await chat.pilot.press("escape")
        await chat.type("/pull llama-3-8b+1b")
        await chat.until(lambda: any("cannot fork" in remark for remark in chat.remarks))
        await chat.ask("exact hi")


async def test_the_chat_goes_on_when_the_process_that_fetches_pairs_ends_with_its_work(tmp_path, monkeypatch):
    gate = Gate(hold_after=3)
    async with running(tmp_path, gate=gate) as chat:
        await chat.type("/pull llama-3-8b+1b")
        await chat.until(lambda: chat.app.librarian.progress and chat.app.librarian.progress.done_bytes)
        monkeypatch.setattr(chat.librarian, "start", cannot_start)
        chat.librarian.close()
        gate.opened.set()
        await chat.until(lambda: any("is on disk" in remark for remark in chat.remarks))
        await chat.until(lambda: any("cannot fork" in remark for remark in chat.remarks))
        await chat.ask("exact hi")


async def test_a_pair_from_the_list_that_no_process_can_load_is_a_remark(tmp_path, monkeypatch):
    async with running(tmp_path) as chat:
        await open_pairs(chat)
        monkeypatch.setattr(chat.engine, "start", cannot_start)
        chat.engine.close()
        await chat.pilot.press("down", "enter")
        await chat.until(lambda: any("cannot fork" in remark for remark in chat.remarks))
        assert not chat.app.conductor.loading
        assert "draft" not in str(chat.screen.query_one(TitleBar).content)


async def test_a_pull_can_be_stopped(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await open_pairs(chat)
        await chat.pilot.press("down", "down", "p")
        await chat.until(lambda: "fetching" in detail(chat))
        await chat.pilot.press("x")
        await chat.until(lambda: chat.app.librarian.progress is None)
        await chat.until(lambda: any("Stopped fetching" in remark for remark in chat.remarks))


async def test_a_pair_that_cannot_run_is_not_fetched(tmp_path):
    async with running(tmp_path) as chat:
        await open_pairs(chat)
        await chat.pilot.press("ctrl+end", "p")
        await chat.until(lambda: chat.notices)
        assert "cannot run yet" in chat.notices[0]
        assert chat.app.librarian.progress is None


async def test_an_earlier_conversation_is_opened_from_the_list(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact first")
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: not chat.screen.dialogue.messages)
        await chat.ask("exact second")
        await open_sessions(chat, rows=2)
        table = chat.app.screen.query_one(DataTable)
        target = [table.get_row_at(n)[0].plain for n in range(2)].index("exact first")
        await chat.pilot.press(*["down"] * target, "enter")
        await chat.until(
            lambda: [m.content for m in chat.screen.dialogue.messages] == ["exact first", "first"]
        )
        await chat.until(lambda: len(chat.screen.query(ReplyView)) == 1)


async def test_a_conversation_is_deleted_only_after_a_yes(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact first")
        await chat.pilot.press("ctrl+n")
        for answer, left in (("n", 1), ("y", 0)):
            await open_sessions(chat, rows=1)
            await chat.pilot.press("d")
            await chat.until(lambda: isinstance(chat.app.screen, Question))
            await chat.pilot.press(answer)
            await chat.until(lambda left=left: len(chat.saved) == left)
            await chat.until(lambda: isinstance(chat.app.screen, SessionsScreen))
            await chat.pilot.press("escape")


async def test_a_conversation_that_cannot_be_deleted_stays_in_the_list(tmp_path, monkeypatch):
    def denied(_conversation):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("localspec.conversations.delete", denied)
    async with running(tmp_path) as chat:
        await chat.ask("exact first")
        await chat.pilot.press("ctrl+n")
        await open_sessions(chat, rows=1)
        await chat.pilot.press("d")
        await chat.until(lambda: isinstance(chat.app.screen, Question))
        await chat.pilot.press("y")
        await chat.until(lambda: any("Permission denied" in note for note in chat.notices))
        assert chat.app.screen.query_one(DataTable).row_count == 1


async def test_a_broken_file_is_named_in_the_list(tmp_path):
    folder = tmp_path / "conversations"
    folder.mkdir()
    (folder / "20200101-broken.jsonl").write_text("no json", "utf-8")
    async with running(tmp_path) as chat:
        await chat.pilot.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, SessionsScreen))
        await chat.until(lambda: "20200101-broken" in detail(chat))
    assert (folder / "20200101-broken.jsonl").exists()


@pytest.mark.parametrize("name", ["~nobodyxyz/a.md", "n" * 300, "missing/a.md", "file/a.md", "a\0b", "."])
def test_an_export_that_cannot_be_written_says_why(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotExported) as refused:
        export(Conversation(tmp_path, 0.0, "demo", ""), name)
    assert refused.value.hint
    assert "None" not in str(refused.value)
    assert os.listdir(tmp_path) == ["file"]


async def test_an_export_that_cannot_be_written_leaves_the_chat_running(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact hi")
        for name in ("~nobodyxyz/a.md", "n" * 300):
            await chat.type(f"/export {name}")
            await chat.until(lambda name=name: any(name in note for note in chat.notices))
        await chat.ask("exact still here")


async def test_a_listed_conversation_is_exported_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path) as chat:
        await chat.ask("exact first")
        await open_sessions(chat, rows=1)
        await chat.pilot.press("e", "e")
        await chat.until(lambda: len(chat.notices) == 2)
        assert "exists already" in chat.notices[1]
        assert "exact first" in (tmp_path / f"{chat.saved[0].name}.md").read_text("utf-8")


async def test_export_and_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path) as chat:
        await chat.ask("why?")
        await chat.type("/export out.md")
        await chat.until(lambda: (tmp_path / "out.md").exists())
        assert "## You\n\nwhy?" in (tmp_path / "out.md").read_text("utf-8")
        await chat.type("/export out.md")
        await chat.until(lambda: any("exists already" in note for note in chat.notices))
        await chat.type("/copy code")
        await chat.until(lambda: chat.app.clipboard.startswith("def accept(proposal, chosen):"))
        await chat.type("/copy")
        await chat.until(lambda: chat.app.clipboard == chat.screen.dialogue.messages[-1].content)


async def test_a_reply_that_runs_is_not_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.busy)
        await chat.type("/export out.md")
        await chat.until(lambda: chat.notices)
        assert not chat.remarks
        assert not (tmp_path / "out.md").exists()


async def test_a_theme_is_tried_and_left_as_it_was(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/theme")
        await chat.until(lambda: isinstance(chat.app.screen, ThemesScreen))
        await chat.pilot.press("home")
        await chat.until(lambda: chat.app.theme != "localspec")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.theme == "localspec")


async def test_the_palette_runs_a_command(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press("ctrl+p", *"inspector")
        found = chat.app.screen.query("CommandList").first()
        await chat.until(lambda: found.option_count and "stats" in str(found.get_option_at_index(0).prompt))
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.app.preferences.inspector)


def test_the_help_page_has_every_command_and_where_files_live(tmp_path):
    text = page(tmp_path).plain
    assert all(f"/{command.usage}" in text and command.help in text for command in COMMANDS)
    assert str(tmp_path) in text


def test_names_and_keys_are_unique_and_not_taken_by_the_text_area():
    names = [command.name for command in COMMANDS]
    keys = [command.key for command in COMMANDS if command.key]
    taken = {key for binding in TextArea.BINDINGS for key in binding.key.split(",")}
    terminal_aliases = {"ctrl+j", "ctrl+m", "ctrl+i", "ctrl+h", "ctrl+c", "ctrl+p"}
    assert len(set(names)) == len(names)
    assert len(set(keys)) == len(keys)
    assert not set(keys) & (taken | terminal_aliases)


def test_areas_stand_together_in_the_table():
    areas = [command.area for command in COMMANDS]
    assert len([a for a, b in pairwise(areas) if a != b]) + 1 == len(set(areas))


def test_a_command_is_found_by_the_beginning_of_its_name_when_that_is_unique():
    assert find("hel").name == "help"
    assert find("temp").name == "temp"
    assert find("t") is None
    assert find("zzz") is None
    assert matching("se")[0].name == "seed"


def test_an_age_is_said_in_its_largest_unit():
    assert [describe_age(s) for s in (5, 120, 7200, 200_000)] == ["now", "2 min", "2 h", "2 d"]
