"""The pair picker, and pairs that are fetched beside the chat, in threads whose failures end nothing else."""

import threading
import time

import pytest
from driving import cannot_start, detail, running
from localspec.tui.commands.base import pair
from localspec.tui.lists import PairsDialog
from localspec.tui.screen import ChatScreen
from localspec.tui.widgets.lines import SUGGESTIONS, Line
from scripted_engine import Gate
from scripted_pairs import ScriptedPairs, called
from textual.widgets import DataTable

from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting, DownloadFailed
from localspec.loading import pair_info
from localspec.loading.pair_info import Fit
from localspec.models.registry import registered_pairs


def row(table, name):
    rows = [[cell.plain for cell in table.get_row_at(n)] for n in range(table.row_count)]
    return next(row for row in rows if row[0] == name)


async def open_pairs(chat):
    await chat.pilot.press("ctrl+o")
    await chat.until(lambda: isinstance(chat.app.screen, PairsDialog))
    await chat.until(lambda: chat.app.screen.query_one(DataTable).row_count == len(registered_pairs()))


async def test_the_picker_says_what_is_here_what_fits_and_what_it_brought(chat):
    await open_pairs(chat)
    table = chat.app.screen.query_one(DataTable)
    assert row(table, "demo") == ["demo", "on CPU", "yes", "5.2 MB", "40.0 MB", "try it at once"]
    assert row(table, "llama-3-8b+1b ★")[0] == table.get_row_at(2)[0].plain
    assert row(table, "llama-3-70b+8b")[1] == "no"
    assert "measured here: 1.4x faster" in detail(chat)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_keys_and_columns_of_the_picker_are_in_view_whatever_row_is_chosen(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await open_pairs(chat)
        for keys in (("down",), ("down",), ("pagedown",) * 5):
            await chat.pilot.press(*keys)
            await chat.settled()
            assert PairsDialog.KEYS in chat.drawn
            assert "memory" in chat.drawn
        await chat.until(lambda: "qwen3-8b-eagle3" in chat.drawn)


async def test_typing_finds_a_pair_at_once_and_one_enter_loads_it(chat):
    await open_pairs(chat)
    await chat.pilot.press("down", "down", "down", *"chat THINKING")
    await chat.until(lambda: chat.app.screen.query_one(DataTable).row_count == 1)
    await chat.pilot.press("enter")
    await chat.until(lambda: chat.state.engine.ready and chat.state.engine.ready.pair == "qwen3-8b+0.6b")
    assert isinstance(chat.app.screen, ChatScreen)


async def test_enter_fetches_a_pair_that_is_not_here_and_the_chat_goes_on(tmp_path):
    gate = Gate(hold_after=3)
    async with running(tmp_path, gate=gate) as chat:
        await open_pairs(chat)
        await chat.pilot.press("down", "down", "enter", "y")
        await chat.until(lambda: "20%" in detail(chat))
        await chat.pilot.press("escape")
        gate.opened.set()
        await chat.ask("exact hi")
        await chat.until(lambda: any("is on disk" in notice for notice in chat.notices))
        assert chat.pairs.pulled == {"llama-3-8b+1b"}


async def test_the_cursor_stays_on_the_pair_that_was_fetched(chat):
    await open_pairs(chat)
    table = chat.app.screen.query_one(DataTable)
    await chat.pilot.press(*["down"] * 6, "enter", "y")
    await chat.until(lambda: row(table, "qwen2.5-14b+0.5b")[2] == "yes")
    assert table.get_row_at(table.cursor_row)[0].plain == "qwen2.5-14b+0.5b"
    assert table.cursor_row == 2
    await chat.until(lambda: "Enter uses it" in detail(chat))


async def pull(chat, name):
    await chat.type(f"/pull {name}")
    await chat.until(lambda: f"Download {name}," in chat.drawn)
    await chat.pilot.press("y")


async def test_a_pair_that_is_missing_is_fetched_and_then_loaded(chat):
    await chat.type("/pair llama-3-8b+1b")
    await chat.until(lambda: "Download it now?" in chat.drawn and "6.1 GB" in chat.drawn)
    await chat.pilot.press("y")
    await chat.until(lambda: chat.state.engine.ready and chat.state.engine.ready.pair == "llama-3-8b+1b")


async def test_a_pair_that_was_fetched_while_a_reply_runs_is_not_loaded_over_it(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=20)) as chat:
        await chat.type("/pair llama-3-8b+1b")
        await chat.until(lambda: "Download it now?" in chat.drawn)
        await chat.pilot.press("enter")
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.sums.cycles)
        await chat.type("/pull")
        await chat.until(lambda: any("is on disk" in notice for notice in chat.notices))
        assert chat.engine.starts == 1


async def test_a_chat_of_a_pair_that_is_not_here_begins_with_the_question_and_no_prompts_to_try(tmp_path):
    async with running(tmp_path, until_ready=False, load=LoadPair(called("llama-3-8b+1b"))) as chat:
        await chat.until(lambda: "Download it now?" in chat.drawn and "6.1 GB" in chat.drawn)
        await chat.pilot.press("enter")
        await chat.settled()
        assert SUGGESTIONS[0] not in chat.drawn
        assert "/pull downloads it" in chat.drawn
        await chat.type("/pull")
        await chat.until(lambda: chat.state.engine.ready)
        assert chat.state.engine.ready.pair == "llama-3-8b+1b"
        await chat.until(lambda: SUGGESTIONS[0] in chat.drawn)


async def test_pull_alone_asks_for_a_name(chat):
    await chat.type("/pull")
    await chat.until(
        lambda: chat.remarks == ["No pair is named: give its name, as /pull NAME. /pair lists all pairs."]
    )
    assert not chat.pairs.progress
    assert not chat.notices


async def test_no_question_takes_the_keys_of_a_person_who_types(chat):
    await chat.pilot.press("w", "h")
    await chat.screen.attempt(pair, "llama-3-8b+1b")
    await chat.pilot.press("y")
    assert chat.screen.prompt.text == "why"
    assert "/pull downloads it" in chat.notices[0]
    assert not chat.pairs.progress


async def test_a_missing_pair_is_fetched_at_once_when_that_was_asked_for(tmp_path):
    async with running(
        tmp_path, until_ready=False, load=LoadPair(called("llama-3-8b+1b")), pull=True
    ) as chat:
        await chat.until(lambda: chat.state.engine.ready)
        assert chat.state.engine.ready.pair == "llama-3-8b+1b"


async def test_a_pair_from_the_list_that_no_process_can_load_is_a_notice(monkeypatch, chat):
    await open_pairs(chat)
    monkeypatch.setattr(chat.engine, "start", cannot_start)
    chat.engine.close()
    await chat.pilot.press("down", "enter")
    await chat.until(lambda: any("cannot fork" in notice for notice in chat.notices))
    assert not chat.state.engine.loading
    assert "draft" not in str(chat.screen.query_one("#title", Line).content)


async def test_a_pull_can_be_stopped(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await open_pairs(chat)
        await chat.pilot.press("down", "down", "enter", "y")
        await chat.until(lambda: "downloading" in detail(chat))
        await chat.pilot.press("ctrl+x")
        await chat.until(lambda: chat.state.downloads.progress is None)
        await chat.until(lambda: any("was stopped" in notice for notice in chat.notices))


async def test_gigabytes_are_fetched_only_after_a_yes(chat):
    await open_pairs(chat)
    for answer in ("n", "enter", "escape"):
        await chat.pilot.press("down", "down", "enter")
        await chat.until(lambda: "Download llama-3-8b+1b, 6.1 GB?" in chat.drawn)
        assert "n or ↵ no" in chat.drawn
        await chat.pilot.press(answer, "pageup")
    assert not chat.pairs.pulled
    assert chat.state.downloads.progress is None


async def test_pull_asks_before_gigabytes(chat):
    await chat.type("/pull qwen3-8b+0.6b")
    await chat.until(lambda: "Download qwen3-8b+0.6b, 5.7 GB?" in chat.drawn)
    await chat.pilot.press("n")
    await chat.type("/pull demo")
    await chat.until(lambda: chat.pairs.pulled == {"demo"})


async def test_a_pull_that_fails_is_reported_in_the_picker(chat):
    await open_pairs(chat)
    chat.pairs.failure = DownloadFailed("the network is gone", hint="try again")
    await chat.pilot.press("down", "down", "enter", "y")
    await chat.until(lambda: "the network is gone" in chat.drawn)
    assert isinstance(chat.app.screen, PairsDialog)


@pytest.mark.parametrize(
    ("fits", "name"),
    [
        (dict.fromkeys(pair_info.LADDER, Fit.CPU), "qwen3-4b+0.6b"),
        ({"qwen3-32b+0.6b": Fit.PART, "qwen3-14b+0.6b": Fit.GPU, "qwen3-8b+0.6b": Fit.GPU}, "qwen3-14b+0.6b"),
        (dict.fromkeys(pair_info.LADDER, Fit.NO), ""),
        ({}, ""),
    ],
)
def test_the_recommended_pair_is_the_largest_on_the_gpu_or_the_smallest(fits, name):
    assert pair_info.recommended(fits) == name


def test_every_recommended_pair_is_known():
    assert set(pair_info.LADDER) <= {row.name for row in pair_info.listing()}
    assert sum(row.recommended for row in pair_info.listing()) <= 1


async def test_a_small_terminal_shows_several_pairs(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        await open_pairs(chat)
        await chat.pilot.press("down", "down", "down")
        await chat.settled()
        heads = [column.label.plain for column in chat.app.screen.query_one(DataTable).ordered_columns]
        assert heads == ["pair", "fits"]  # the others would be cut, and their numbers with them
        assert "llama-3.2-3b+1b" in chat.drawn or "llama-3-70b+8b" in chat.drawn
        assert "llama-3-8b+1b" in chat.drawn


def ends(downloads):
    """What the next pull or list that ends reports."""
    deadline = time.monotonic() + 300
    while not (found := downloads.take_ended()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


@pytest.fixture
def downloads():
    found = ScriptedPairs(Gate(hold_after=3))
    yield found
    found.close()


def test_a_list_that_fails_leaves_the_pull_running(downloads):
    downloads.pull("mine")
    while not downloads.progress.done_bytes:
        time.sleep(0.002)
    downloads.failure = BadSetting("models.toml is damaged", hint="repair it")
    downloads.refresh()
    assert [failure.what for _name, failure in ends(downloads)] == ["models.toml is damaged"]
    assert downloads.progress.name == "mine"
    assert downloads.rows == ()


@pytest.mark.parametrize("error", [DownloadFailed("no network", hint=""), KeyError("x")])
def test_a_pull_that_fails_is_over_and_says_why(downloads, error):
    downloads.failure = error
    downloads.pull("mine")
    downloads.gate.opened.set()
    ((name, failure),) = ends(downloads)
    assert (str(error) in failure.what, name, downloads.progress) == (True, "mine", None)


def test_leaving_stops_the_pull(downloads):
    downloads.pull("mine")
    downloads.close()
    assert [failure.error for _name, failure in ends(downloads)] == ["PullCancelled"]
    assert not [thread for thread in threading.enumerate() if thread is downloads._thread]
