"""Links in a reply: shown before anything opens, and only addresses of the web can be opened."""

import webbrowser
from urllib.parse import unquote

import pytest
from driving import detail, running
from hypothesis import given
from hypothesis import strategies as st
from localspec.tui.dialogs import LinkDialog, web_address
from localspec.tui.screen import ChatScreen

HOSTILE = [
    "file%3A///etc/passwd",
    "vscode://x/y",
    "%5C%5Cevil%5Cshare%5Cx.exe",
    "/usr/bin/xcalc",
    "file%253A///etc/passwd",
    "smb://evil/share",
    "https:evil",
    "https%3A%5C%5Cevil",
    "https://good.org%5C@evil.org",
    "https://good.org@evil.org/",
    "h%0Attps://evil.org",
    "https://e%76il%20.org",
    "javascript:alert(1)",
]


@pytest.fixture
def opened(monkeypatch):
    """Addresses that reached the system's opener."""
    found = []
    monkeypatch.setattr("webbrowser.open", lambda url, **_: found.append(url))
    return found


async def click_link(chat, href, around="see [docs]({}) for more"):
    """Answer with a link in a text, and click it."""
    await chat.ask("exact " + around.format(href))
    await chat.until(lambda: "docs" in chat.drawn.partition("tokens")[0].rpartition("exact")[2])
    lines = chat.drawn.splitlines()
    row = max(n for n, line in enumerate(lines) if "docs" in line)
    await chat.pilot.click(offset=(lines[row].rindex("docs") + 1, row))
    await chat.pilot.pause()


@pytest.mark.parametrize("href", HOSTILE[:4])
async def test_a_link_that_is_no_web_address_is_shown_and_never_opened(tmp_path, opened, href):
    async with running(tmp_path) as chat:
        await click_link(chat, href)
        assert opened == []
        assert unquote(href) in chat.drawn
        assert "Not opened from here" in detail(chat)
        await chat.pilot.press("o")
        await chat.until(lambda: chat.remarks)
        assert opened == []


@pytest.mark.parametrize("href", HOSTILE)
def test_an_address_that_only_looks_like_one_of_the_web_is_none(href):
    assert web_address(unquote(href)) is None


@pytest.mark.parametrize(
    "around", ["see [docs]({}) for more", "| a |\n|---|\n| [docs]({}) |\n", "# [docs]({})"]
)
async def test_a_web_address_is_opened_only_once_it_was_seen(tmp_path, opened, around):
    async with running(tmp_path) as chat:
        await click_link(chat, "https://example.org/a%20b?c=d#e", around)
        assert opened == []
        assert "https://example.org/a b?c=d#e" in chat.drawn
        assert detail(chat) == "It leads to example.org."
        await chat.pilot.press("c")
        assert chat.app.clipboard == "https://example.org/a b?c=d#e"
        await chat.pilot.press("o")
        await chat.until(lambda: isinstance(chat.app.screen, ChatScreen))
        assert opened == ["https://example.org/a%20b?c=d#e"]


async def test_a_browser_that_cannot_be_opened_is_told(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr("webbrowser.open", refuse)
    async with running(tmp_path) as chat:
        await click_link(chat, "https://example.org/")
        await chat.pilot.press("o")
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == ["The browser cannot be opened: could not locate runnable browser."]


async def test_a_link_that_is_left_opens_nothing(tmp_path, opened):
    async with running(tmp_path, size=(80, 24)) as chat:
        await click_link(chat, "https://example.org/" + "x" * 5000)
        assert LinkDialog.KEYS in chat.drawn
        await chat.pilot.press("escape", "x")
        await chat.until(lambda: chat.screen.prompt.text == "x")
        assert opened == []


@given(st.text() | st.text("htps:/\\@%.[]#? \n\te12").map("https://{}".format))
def test_an_address_that_may_be_opened_begins_with_http_and_holds_nothing_that_steers(text):
    address = web_address(text)
    if address is not None:
        assert address.lower().startswith(("http://", "https://"))
        assert address.isascii()
        assert address.isprintable()
        assert not set(address) & set(' "<>\\^`{|}')


def test_ordinary_addresses_may_be_opened():
    for address in (
        "http://localhost:8080/x",
        "https://a-b.org",
        "https://[::1]:80/",
        "HTTPS://EXAMPLE.ORG/~me",
    ):
        assert web_address(address) == address
