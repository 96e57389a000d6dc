"""What commands set and show: sampling, drafting, comparison, inspector, help and themes."""

from itertools import pairwise

import pytest
from driving import asked, running
from localspec.tui.commands.table import COMMANDS, find, matching
from localspec.tui.dialogs import RaceDialog, help_page
from localspec.tui.status import status
from localspec.tui.widgets.prompt import Completion
from scripted_engine import Gate
from textual.widgets import Static, TextArea

from localspec.measure.race import BRANCHED


async def test_settings_reach_the_engine(tmp_path):
    async with running(tmp_path, settings={"temperature": 0.7}) as chat:
        for command in ("/seed 11", "/depth 3", "/draft off", "/top-k 40", "/max-tokens 99", "/think 50"):
            await chat.type(command)
        await chat.ask("exact hi")
        wanted = {"temperature": 0.7, "seed": 11, "depth": 3, "speculate": False, "top_k": 40}
        assert asked(chat)[0].options == wanted | {"max_tokens": 99, "think": 50, "system": ""}


async def test_thinking_is_turned_on_and_off_and_limited(chat):
    for argument, think in (("on", True), ("off", False), ("0", 0), ("512", 512)):
        await chat.type(f"/think {argument}")
        assert repr(chat.state.engine.settings["think"]) == repr(think)
        assert chat.remarks[-1] == f"think is {argument}."
    await chat.type("/think default")
    assert "think" not in chat.state.engine.settings


async def test_a_bad_argument_is_refused_with_a_sentence(chat):
    before = chat.state.engine.settings
    wrong = "/temp hot,/temp 9,/max-tokens -1,/depth 99,/top-p 2,/depth many"
    for count, command in enumerate(
        f"{wrong},/draft maybe,/think hard,/nonsense,/seed -1".split(","), start=1
    ):
        await chat.type(command)
        await chat.until(lambda count=count: len(chat.remarks) == count)
    assert chat.state.engine.settings == before
    assert chat.remarks[-1] == f"seed takes a whole number from 0 to {2**64 - 1}."


async def test_a_race_shows_both_sides_then_its_headline_and_the_first_difference(tmp_path):
    gate = Gate(hold_after=9)
    async with running(tmp_path, gate=gate, settings={"temperature": 0.7}) as chat:
        gate.opened.set()
        await chat.ask("differ please, so that the sides can be distinguished")
        gate.opened.clear()
        await chat.pilot.press("f9")
        await chat.until(lambda: "9 passes" in chat.drawn and "plain decoding runs first" in chat.drawn)
        gate.opened.set()
        await chat.until(lambda: "2.0 times as fast" in chat.drawn and chat.drawn.count("✓") == 2)
        lines = chat.drawn.splitlines()
        (headline,) = (n for n, line in enumerate(lines) if "2.0 times as fast" in line)
        assert any("plain decoding " in line and "with drafting" in line for line in lines[headline:])
        assert "41% and 38%: rounding decides here." in "".join(lines[headline : headline + 4])
        verdict = str(chat.app.screen.query_one(".verdict", Static).content)
        assert verdict.startswith("It is ' weights' with drafting")
        columns = [side.content for side in chat.app.screen.query(".side")][-2:]
        words = [
            [str(column)[span.start : span.end].strip() for span in column.spans if span.style == BRANCHED]
            for column in columns
        ]
        assert words == [["parameters**"], ["weights**"]]
        engine = chat.state.engine
        engine.compared = engine.sides[1].final = None  # as while drafting writes
        engine.comparing = True
        await chat.until(lambda: "The texts differ from" in chat.drawn)
        engine.reply = engine.sides[1]
        assert status(engine, None).startswith("comparing: ")
        engine.sides[1].final = engine.sides[0].final
        assert status(engine, None) == "comparing the texts"
        engine.reply, engine.comparing = None, False
        asked = chat.engine.handler.asked[-1].options
        assert (asked["temperature"], asked["max_tokens"]) == (0, 256), "a model in a loop has no end"
        await chat.pilot.press("escape")
        await chat.type("/compare 0.5")
        await chat.until(lambda: chat.engine.handler.asked[-1].options["temperature"] == 0.5)
        await chat.until(lambda: "times as fast" in chat.drawn)
        await chat.pilot.press("escape")
        chat.state.engine.settings["max_tokens"] = 40
        await chat.type("/compare")
        await chat.until(lambda: chat.engine.handler.asked[-1].options["max_tokens"] == 40)
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
        await chat.until(lambda: "Stopped before both sides had 32 tokens" in chat.drawn)
        assert not chat.state.engine.compared
        await chat.pilot.press("escape")
        assert chat.app.screen is chat.screen


async def test_a_race_is_left_at_once_with_a_second_escape(tmp_path, monkeypatch):
    gate = Gate(hold_after=9)
    async with running(tmp_path, gate=gate) as chat:
        gate.opened.set()
        await chat.ask("why?")
        gate.opened.clear()
        monkeypatch.setattr(chat.engine, "send", lambda request: None)  # an engine that does not stop
        await chat.pilot.press("f9")
        await chat.pilot.press("escape")
        assert isinstance(chat.app.screen, RaceDialog)
        await chat.pilot.press("escape")
        assert chat.app.screen is chat.screen


async def test_an_option_that_is_not_set_is_shown_with_its_default(chat):
    await chat.type("/temp")
    await chat.until(lambda: chat.remarks)
    assert chat.remarks == ["temperature is 0.8, unless the model file sets it (default)."]


async def test_an_alias_runs_with_one_enter(chat):
    await chat.pilot.press(*"/save")
    await chat.until(lambda: chat.screen.query_one(Completion).has_class("-open"))
    await chat.pilot.press("enter")
    await chat.until(lambda: chat.remarks)
    assert chat.remarks == ["There is nothing to export yet."]
    assert chat.screen.prompt.text == ""


async def test_themes_are_listed_and_set_by_name(chat):
    await chat.type("/theme")
    await chat.until(lambda: chat.notices and "textual-light, tokyo-night" in chat.notices[0])
    await chat.type("/theme nord")
    await chat.until(lambda: chat.app.theme == "nord")


def test_the_help_page_has_every_command_and_where_files_live(tmp_path):
    text = help_page(str(tmp_path), 200).plain
    assert "Drawing uses one CPU core, so `localspec run` is faster" in text
    assert all(f"/{command.usage}" in text and command.help in text for command in COMMANDS)
    assert str(tmp_path) in text


@pytest.mark.parametrize(("width", "indent"), [(74, 27), (36, 4)])
def test_the_texts_of_the_help_page_stand_in_their_column(tmp_path, width, indent):
    page = help_page(str(tmp_path), width).plain
    for line in page.partition("\ntokens in")[0].splitlines():
        assert len(line.rstrip()) <= width
        assert len(line) - len(line.lstrip()) in (0, 2, indent), line
    words = " ".join(page.split())
    assert all(command.help in words for command in COMMANDS)


def test_names_and_keys_are_unique_and_not_taken_by_the_text_area():
    names = [command.name for command in COMMANDS]
    keys = [command.key for command in COMMANDS if command.key]
    taken = {key for binding in TextArea.BINDINGS for key in binding.key.split(",")}
    terminal_aliases = {"ctrl+j", "ctrl+m", "ctrl+i", "ctrl+h", "ctrl+c"}
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
