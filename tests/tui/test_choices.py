"""What commands set and show: sampling, drafting, comparison, inspector."""

import pytest
from driving import asked, running
from localspec.tui.dialogs import HelpDialog, RaceDialog
from localspec.tui.widgets.lines import Inspector
from localspec.tui.widgets.prompt import Completion
from scripted_engine import Gate
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
        "/temp 9",
        "/max-tokens -1",
        "/depth 99",
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


async def test_a_race_shows_both_sides_then_its_headline_and_the_first_difference(tmp_path):
    gate = Gate(hold_after=9)
    async with running(tmp_path, gate=gate, settings={"temperature": 0.7}) as chat:
        gate.opened.set()
        await chat.ask("differ please, so that the sides can be told from each other")
        gate.opened.clear()
        await chat.pilot.press("f9")
        await chat.until(lambda: "9 passes" in chat.drawn and "plain decoding runs first" in chat.drawn)
        gate.opened.set()
        await chat.until(lambda: "2.0 times as fast" in chat.drawn and chat.drawn.count("✓") == 2)
        lines = chat.drawn.splitlines()
        (headline,) = (n for n, line in enumerate(lines) if "2.0 times as fast" in line)
        assert any("plain decoding " in line and "with drafting" in line for line in lines[headline:])
        verdict = str(chat.app.screen.query_one(".verdict", Static).content)
        assert "Token 58: ' weights' with drafting" in verdict
        assert chat.state.engine.plain_speed
        assert chat.engine.handler.asked[-1].options["temperature"] == 0
        await chat.pilot.press("escape")
        await chat.type("/compare 0.5")
        await chat.until(lambda: chat.engine.handler.asked[-1].options["temperature"] == 0.5)
        assert len(chat.saved[0].messages) == 2


async def test_a_race_on_a_small_terminal_shows_lines_of_both_texts(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        await chat.ask("exact " + "yes, this is a line of it\n" * 20)
        await chat.pilot.press("f9")
        await chat.until(lambda: "2.0 times as fast" in chat.drawn and chat.drawn.count("✓") == 2)
        await chat.pilot.press("home")
        await chat.settled()
        assert sum(line.count("yes, this is a") == 2 for line in chat.drawn.splitlines()) >= 2, chat.drawn
        assert RaceDialog.KEYS in chat.drawn


async def test_a_race_on_a_small_terminal_ends_with_the_texts(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        await chat.ask("differ please, so that the sides can be told from each other")
        await chat.pilot.press("f9")
        await chat.until(lambda: "2.0 times as fast" in chat.drawn and chat.drawn.count("✓") == 2)
        await chat.settled()
        assert "Token 58" not in chat.drawn


async def test_a_race_that_is_left_stops(tmp_path):
    gate = Gate(hold_after=9)
    async with running(tmp_path, gate=gate) as chat:
        gate.opened.set()
        await chat.ask("why?")
        gate.opened.clear()
        await chat.pilot.press("f9")
        await chat.until(lambda: "9 passes" in chat.drawn)
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.state.engine.busy)
        assert chat.remarks == ["The comparison was stopped."]


async def test_a_reply_and_a_race_are_shared_as_pictures_that_name_models_machine_and_program(
    tmp_path, monkeypatch
):
    async with running(tmp_path) as chat:
        await chat.type("/share")
        await chat.until(lambda: chat.remarks == ["There is no reply of this session to share yet."])
        await chat.ask("exact some words <b>")
        for name, words in (
            ("reply", "tokens a pass, toy pair"),
            ("race", "2.0 times as fast, the same text"),
        ):
            await chat.type(f"/share {tmp_path / name}.svg")
            await chat.until(lambda name=name: "Drawn into" in chat.remarks[-1] and name in chat.remarks[-1])
            drawn = (tmp_path / f"{name}.svg").read_text("utf-8").replace("&#160;", " ")
            for part in (
                "some words &lt;b&gt;",
                "scripted-8b with scripted-1b",
                "a machine; localspec",
                words,
            ):
                assert part in drawn
            assert ("with drafting" in drawn) == (name == "race")
            await chat.pilot.press("f9")
            await chat.until(lambda: chat.drawn.count("✓") == 2)
            await chat.pilot.press("escape")
        await chat.type(f"/share {tmp_path / 'race.svg'}")
        await chat.until(lambda: "exists already" in chat.remarks[-1])
        monkeypatch.chdir(tmp_path)
        await chat.pilot.press("f9")
        await chat.until(lambda: chat.drawn.count("✓") == 2)
        for pictures in (1, 2):
            await chat.pilot.press("s")
            await chat.until(
                lambda pictures=pictures: len(list(tmp_path.glob("exact-some-*.svg"))) == pictures
            )
            await chat.until(lambda: "Drawn into" in chat.drawn)
        assert isinstance(chat.app.screen, RaceDialog)


async def test_the_inspector_shows_where_the_time_went_positions_and_lengths(tmp_path):
    async with running(tmp_path, size=(120, 60)) as chat:
        await chat.ask("why?")
        await chat.pilot.press("f3")
        inspector = chat.screen.query_one(Inspector)
        await chat.until(
            lambda: inspector.display and "Guesses kept, by place" in str(inspector._chart.content)
        )
        text = str(inspector._chart.content)
        assert "mean" in text


async def test_an_option_that_is_not_set_is_shown_with_its_default(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/temp")
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == ["temperature is 0.8, unless the model file sets it (default)."]


async def test_an_alias_runs_with_one_enter(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press(*"/save")
        await chat.until(lambda: chat.screen.query_one(Completion).has_class("-open"))
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == ["There is nothing to export yet."]
        assert chat.screen.prompt.text == ""
