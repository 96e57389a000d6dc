"""What commands set and show: sampling, drafting, comparison, inspector."""

import pytest
from driving import asked, running
from localspec.tui.dialogs import ComparisonDialog, HelpDialog
from localspec.tui.widgets.lines import Inspector
from localspec.tui.widgets.prompt import Completion
from textual.widgets import Static


async def test_settings_reach_the_engine(tmp_path):
    async with running(tmp_path, settings={"temperature": 0.7}) as chat:
        for command in ("/seed 11", "/depth 3", "/draft off", "/top-k 40", "/max-tokens 99"):
            await chat.type(command)
        await chat.ask("exact hi")
        wanted = {
            "temperature": 0.7,
            "seed": 11,
            "depth": 3,
            "speculate": False,
            "top_k": 40,
            "max_tokens": 99,
            "system": "",
        }
        assert asked(chat)[0].options == wanted


async def test_ollamas_commands_set_and_show_the_same_settings(tmp_path):
    async with running(tmp_path) as chat:
        for command in ("/set parameter temperature 0.5", "/set num_predict 9", "/set system Be brief."):
            await chat.type(command)
        assert chat.state.engine.settings == {"temperature": 0.5, "max_tokens": 9}
        assert chat.state.conversation.journal.system == "Be brief."
        await chat.type("/show")
        await chat.until(lambda: any("temperature 0.5, max_tokens 9" in notice for notice in chat.notices))
        await chat.type("/?")
        await chat.until(lambda: isinstance(chat.app.screen, HelpDialog))


@pytest.mark.parametrize(
    "command",
    [
        "/set num_ctx 4096",
        "/set quit now",
        "/temp hot",
        "/top-p 2",
        "/seed -1",
        "/depth many",
        "/draft maybe",
        "/nonsense",
    ],
)
async def test_a_bad_argument_is_refused_with_a_sentence(tmp_path, command):
    async with running(tmp_path) as chat:
        before = chat.state.engine.settings
        await chat.type(command)
        await chat.until(lambda: chat.remarks)
        assert chat.state.engine.settings == before


async def test_a_refused_seed_is_told_the_whole_numbers_that_it_may_be(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/seed -1")
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == [f"seed takes a whole number from 0 to {2**64 - 1}."]


async def test_compare_shows_both_speeds_and_the_first_difference(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("differ please")
        await chat.pilot.press("f9")
        await chat.until(lambda: isinstance(chat.app.screen, ComparisonDialog))
        verdict = str(chat.app.screen.query_one(".detail", Static).content)
        assert "2.00x as fast" in verdict
        assert "Token 58: ' weights' with drafting" in verdict
        assert "0.031" in verdict
        assert chat.state.engine.plain_speed
        assert len(chat.saved[0].messages) == 2


async def test_the_inspector_shows_positions_lengths_cycles_and_the_last_proposal(tmp_path):
    async with running(tmp_path, size=(120, 60)) as chat:
        await chat.ask("why?")
        await chat.pilot.press("f3")
        inspector = chat.screen.query_one(Inspector)
        await chat.until(
            lambda: inspector.display and "Guesses kept, by place" in str(inspector._chart.content)
        )
        text = str(inspector._chart.content)
        assert "The last guess, kept or not" in text
        assert "✓" in text or "✗" in text
        assert "mean" in text


async def test_an_option_that_is_not_set_is_shown_with_its_default(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/temp")
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == ["temperature is the model's own, else 0.8 (default)."]


async def test_an_alias_runs_with_one_enter(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press(*"/save")
        await chat.until(lambda: chat.screen.query_one(Completion).has_class("-open"))
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == ["There is nothing to export yet."]
        assert chat.screen.prompt.text == ""
