"""Every screen as a picture, at two sizes. `pytest --snapshot-update` redraws them after a change that was meant."""

import pytest
from driving import Chat, detail, undrawn
from localspec.tui.dialogs import (
    HelpDialog,
    LinkDialog,
    RaceDialog,
    ThemeDialog,
)
from localspec.tui.lists import ConversationsDialog, PairsDialog
from localspec.tui.widgets.lines import Inspector
from scripted_engine import Gate, Pace
from textual._compositor import Compositor
from textual.widgets import Input

from localspec.chat.conversations import Journal, Numbers, StoredMessage
from localspec.engine.messages import Died

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


@SIZES
def test_an_empty_chat(draw):
    async def steps(chat):
        await chat.until(lambda: "ready" in str(chat.screen.query_one("#status").content))

    draw(steps)


@SIZES
def test_a_reply_that_is_being_written(draw):
    async def steps(chat):
        await chat.type("think about drafting")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 20)

    draw(steps, gate=Gate(hold_after=20))


@SIZES
def test_strong_token_origins_with_lookups_and_rejected_guesses(draw):
    async def steps(chat):
        await chat.type("exact " + "some words that the draft may or may not know, again and again, " * 4)
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 14)

    draw(steps, gate=Gate(hold_after=14))


@SIZES
def test_a_finished_reply_with_the_inspector(draw):
    async def steps(chat):
        await chat.ask("why?")
        await chat.pilot.press("f3")
        await chat.until(lambda: chat.screen.query_one(Inspector).region)

    draw(steps)


@SIZES
def test_a_dead_engine(draw):
    async def steps(chat):
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 9)
        chat.engine.die(Died("the engine process ended unexpectedly (SIGABRT)", "GGML_ASSERT(n > 0) failed"))
        await chat.until(lambda: chat.notices)

    draw(steps, gate=Gate(hold_after=9))


@SIZES
def test_slash_completion(draw):
    async def steps(chat):
        await chat.pilot.press("/", "t")
        await chat.until(lambda: chat.screen.completion.is_open)

    draw(steps)


@SIZES
def test_the_pair_picker_during_a_pull(draw):
    async def steps(chat):
        await chat.pilot.press("ctrl+o")
        await chat.until(lambda: isinstance(chat.app.screen, PairsDialog))
        await chat.until(lambda: chat.app.screen.query_one("DataTable").row_count)
        await chat.pilot.press("down", "down", "enter", "y")
        await chat.until(lambda: "30%" in detail(chat))

    draw(steps, gate=Gate(hold_after=4), pace=Pace())


@SIZES
def test_the_list_of_conversations(draw, tmp_path):
    for n, title in enumerate(
        ("How does drafting work, and " + "why " * 20, "A poem about rollback", "[/Tea]")
    ):
        journal = Journal(tmp_path / "conversations" / f"2025010{n}-x.jsonl", "r1-distill-qwen-32b+1.5b")
        journal.add(StoredMessage("user", title))
        journal.add(StoredMessage("assistant", "So.", outcome="stop", numbers=Numbers(3, 0.1, 0.7, 2.0, 4)))
    (tmp_path / "conversations" / "20240101-broken.jsonl").write_text("{}")

    async def steps(chat):
        await chat.pilot.press("ctrl+s")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationsDialog))
        await chat.until(lambda: chat.app.screen.query_one("DataTable").row_count == 3)

    draw(steps)


@SIZES
def test_a_link(draw):
    async def steps(chat):
        await chat.ask("exact Read [the paper](https://arxiv.org/abs/2211.17192).")
        await chat.app.push_screen(LinkDialog("https://arxiv.org/abs/2211.17192"))

    draw(steps)


@SIZES
def test_a_comparison(draw):
    async def steps(chat):
        await chat.ask("differ please")
        await chat.pilot.press("f9")
        await chat.until(lambda: isinstance(chat.app.screen, RaceDialog) and "times as fast" in chat.drawn)
        await chat.until(lambda: chat.drawn.count("✓") == 2)
        await chat.settled()

    draw(steps)


@SIZES
def test_help(draw):
    async def steps(chat):
        await chat.pilot.press("f1")
        await chat.until(lambda: isinstance(chat.app.screen, HelpDialog))

    draw(steps)


@SIZES
def test_the_theme_picker(draw):
    async def steps(chat):
        await chat.type("/theme")
        await chat.until(lambda: isinstance(chat.app.screen, ThemeDialog))
        await chat.until(lambda: "localspec" in chat.drawn.partition("Theme")[2])  # it is scrolled to

    draw(steps)
