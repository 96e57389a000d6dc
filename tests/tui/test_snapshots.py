"""Every screen as a picture, at two sizes. `pytest --snapshot-update` redraws them after a change that was meant."""

import pytest
from driving import Chat, detail, stored, undrawn
from localspec.tui.dialogs import HelpDialog, RaceDialog
from localspec.tui.lists import ConversationsDialog, PairsDialog
from localspec.tui.widgets.lines import Inspector
from scripted_engine import Gate
from textual._compositor import Compositor
from textual.widgets import Input

from localspec.conversations.conversations import StoredMessage
from localspec.engine.messages import Died

pytestmark = pytest.mark.process

SIZES = pytest.mark.parametrize("size", [(100, 30), (80, 24)], ids=["100x30", "80x24"])


@pytest.fixture
def draw(snap_compare, tmp_path, size, monkeypatch):
    """Compare the screen after `steps` with its picture; nothing on it depends on time, place or version."""
    monkeypatch.setattr(Compositor, "render_update", undrawn)
    monkeypatch.setattr("localspec.tui.lists.describe_age", lambda _seconds: "59 min")
    monkeypatch.setattr("localspec.tui.dialogs.page_folder", lambda _folder: "~/.local/share/localspec")

    def compare(steps, **options):
        chat = Chat(tmp_path, settings={"temperature": 0.7, "seed": 5}, **options)

        async def run(_pilot):
            chat.app.animation_level = "none"
            await chat.ready()
            chat.screen.prompt.cursor_blink = False
            await steps(chat)
            for field in chat.app.screen.query(Input):
                field.cursor_blink = False
            await chat.settled()

        assert snap_compare(chat.app, terminal_size=size, run_before=run)
        chat.state.close_engines()

    return compare


def picture(hold_after=None):
    """A test that compares the screen after these steps with its picture."""

    def made(steps):
        @SIZES
        def test(draw):
            draw(steps, gate=Gate(hold_after))

        return test

    return made


@picture()
async def test_an_empty_chat(chat):
    await chat.until(lambda: "ready" in str(chat.screen.query_one("#status").content))


@picture(hold_after=20)
async def test_a_reply_that_is_being_written(chat):
    await chat.begin("think about drafting", cycles=20)


@picture(hold_after=14)
async def test_token_origins_with_lookups_and_rejected_tokens(chat):
    await chat.begin(
        "exact " + "some words that the draft may or may not know, again and again, " * 4, cycles=14
    )


@picture()
async def test_a_finished_reply_with_the_inspector(chat):
    await chat.ask("why?")
    await chat.pilot.press("f3")
    await chat.until(lambda: chat.screen.query_one(Inspector).region)


@picture(hold_after=9)
async def test_a_dead_engine(chat):
    await chat.begin("why?", cycles=9)
    chat.engine.die(Died("the engine process ended unexpectedly (SIGABRT)", "GGML_ASSERT(n > 0) failed"))
    await chat.until(lambda: chat.notices)


@picture()
async def test_slash_completion(chat):
    await chat.pilot.press("/", "t")
    await chat.until(lambda: chat.screen.completion.is_open)


@picture(hold_after=4)
async def test_the_pair_picker_during_a_pull(chat):
    await chat.pilot.press("ctrl+o")
    await chat.until(lambda: isinstance(chat.app.screen, PairsDialog))
    await chat.until(lambda: chat.app.screen.query_one("DataTable").row_count)
    await chat.pilot.press("down", "down", "enter", "y")
    await chat.until(lambda: "30%" in detail(chat))


@picture()
async def test_the_list_of_conversations(chat):
    for n, title in enumerate(
        ("How does drafting work, and " + "why " * 20, "A poem about rollback", "[/Tea]")
    ):
        reply = StoredMessage("assistant", "So.", outcome="stop")
        pair = "r1-distill-qwen-32b+1.5b"
        stored(chat.folder, StoredMessage("user", title), reply, name=f"2025010{n}-x", pair=pair)
    await chat.pilot.press("ctrl+s")
    await chat.until(lambda: isinstance(chat.app.screen, ConversationsDialog))
    await chat.until(lambda: chat.app.screen.query_one("DataTable").row_count == 3)


@picture()
async def test_a_comparison(chat):
    await chat.ask("differ please")
    await chat.pilot.press("f9")
    await chat.until(lambda: isinstance(chat.app.screen, RaceDialog) and "times as fast" in chat.drawn)
    await chat.until(lambda: chat.drawn.count("✓") == 2)
    await chat.settled()


@picture()
async def test_help(chat):
    await chat.pilot.press("f1")
    await chat.until(lambda: isinstance(chat.app.screen, HelpDialog))
