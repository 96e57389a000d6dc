"""Links in a reply: shown whole and copied, never opened."""

import pytest
from driving import running
from localspec.tui.dialogs import LinkDialog
from localspec.tui.screen import ChatScreen


async def click_link(chat, href, around="see [docs]({}) for more"):
    """Answer with a link in a text, and click it."""
    await chat.ask("exact " + around.format(href))
    await chat.until(lambda: "docs" in chat.drawn.partition("tokens")[0].rpartition("exact")[2])
    lines = chat.drawn.splitlines()
    row = max(n for n, line in enumerate(lines) if "docs" in line)
    await chat.pilot.click(offset=(lines[row].rindex("docs") + 1, row))
    await chat.pilot.pause()


@pytest.mark.parametrize(
    "around", ["see [docs]({}) for more", "| a |\n|---|\n| [docs]({}) |\n", "# [docs]({})"]
)
async def test_the_address_of_a_link_is_shown_and_copied_and_nothing_opens_it(tmp_path, monkeypatch, around):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url, **_: opened.append(url))
    async with running(tmp_path) as chat:
        await click_link(chat, "https://example.org/a%20b?c=d#e", around)
        assert "https://example.org/a b?c=d#e" in chat.drawn
        await chat.pilot.press("c")
        assert chat.app.clipboard == "https://example.org/a b?c=d#e"
        assert opened == []


async def test_a_link_with_a_long_address_can_be_left(tmp_path):
    async with running(tmp_path, size=(80, 24)) as chat:
        await click_link(chat, "https://example.org/" + "x" * 5000)
        assert LinkDialog.KEYS in chat.drawn
        await chat.pilot.press("escape", "x")
        await chat.until(lambda: chat.screen.prompt.text == "x")
        assert isinstance(chat.app.screen, ChatScreen)
