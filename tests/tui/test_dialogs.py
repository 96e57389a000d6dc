"""Help and themes; and the command table behind them."""

from itertools import pairwise

import pytest
from driving import running
from localspec.tui.commands.table import COMMANDS, find, matching
from localspec.tui.dialogs import HelpDialog, ThemeDialog, help_page
from textual.widgets import TextArea


@pytest.mark.parametrize(("command", "screen"), [("/help", HelpDialog), ("/theme", ThemeDialog)])
async def test_the_keys_of_a_long_dialog_are_in_view(tmp_path, command, screen):
    async with running(tmp_path, size=(80, 24)) as chat:
        await chat.type(command)
        await chat.until(lambda: isinstance(chat.app.screen, screen) and chat.app.screen.KEYS in chat.drawn)
        await chat.pilot.press("end")
        await chat.pilot.pause()
        assert chat.app.screen.KEYS in chat.drawn
        assert ("files" if screen is HelpDialog else "tokyo-night") in chat.drawn


async def test_a_theme_is_tried_and_left_as_it_was(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/theme")
        await chat.until(lambda: isinstance(chat.app.screen, ThemeDialog))
        await chat.pilot.press("home")
        await chat.until(lambda: chat.app.theme != "localspec")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.theme == "localspec")


async def test_the_chat_stands_behind_a_dialog(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/help")
        await chat.until(lambda: isinstance(chat.app.screen, HelpDialog))
        await chat.settled()
        assert "localspec" in chat.drawn.splitlines()[0]


def test_the_help_page_has_every_command_and_where_files_live(tmp_path):
    text = help_page(str(tmp_path), 200).plain
    assert all(f"/{command.usage}" in text and command.help in text for command in COMMANDS)
    assert str(tmp_path) in text


@pytest.mark.parametrize(("width", "indent"), [(74, 35), (36, 4)])
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


async def test_the_theme_picker_stands_beside_the_reply_that_it_previews(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact some words that the theme is seen on")
        before = [line[:60] for line in chat.drawn.splitlines() if "some words" in line]
        await chat.type("/theme")
        await chat.until(lambda: isinstance(chat.app.screen, ThemeDialog) and "tokyo-night" in chat.drawn)
        assert [line[:60] for line in chat.drawn.splitlines() if "some words" in line] == before
