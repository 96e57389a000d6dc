"""Long lists and tables: few widgets, whatever comes, and the same text at the same place."""

import pytest
from driving import resumed_with, running, source

ITEMS = "".join(f"- item {n} of **many**\n" for n in range(1500))
MOST_WIDGETS = 400  # on the whole screen


def widgets(chat):
    return len(list(chat.screen.walk_children()))


def drawn(chat):
    return [part for part in chat.replies[0].finished_parts if part.is_drawn]


@pytest.mark.parametrize(
    "reply",
    [
        ITEMS,
        ITEMS.replace("\n", "\n\n"),
        "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 1500,
        "# head\n\n" * 3000,
        "- " * 3000,
    ],
    ids=["items", "loose items", "rows", "heads", "items in items"],
)
async def test_a_long_reply_opens_with_few_widgets(tmp_path, reply):
    resumed = resumed_with(tmp_path, reply)
    async with running(tmp_path, resumed=resumed) as chat:
        await chat.until(lambda: chat.replies and chat.replies[0].finished_parts[-1].is_drawn)
        assert source(chat.replies[0]).count("\n") >= reply.count("\n")
        assert widgets(chat) < MOST_WIDGETS


async def test_what_is_scrolled_to_is_drawn_and_what_is_left_becomes_text_of_the_same_height(tmp_path):
    resumed = resumed_with(tmp_path, ITEMS)
    async with running(tmp_path, resumed=resumed) as chat:
        await chat.until(lambda: drawn(chat))
        last = chat.replies[0].finished_parts[-1]
        height = last.size.height
        chat.screen.transcript.scroll_home(animate=False)
        await chat.until(lambda: chat.replies[0].finished_parts[0].is_drawn and not last.is_drawn)
        await chat.pilot.pause()
        assert "• item 0 of many" in chat.drawn
        assert last.size.height == height
        assert widgets(chat) < MOST_WIDGETS


async def test_a_list_that_streams_holds_few_widgets(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact " + "- a\n" * 400)
        await chat.until(lambda: len(drawn(chat)) < 10)
        assert widgets(chat) < MOST_WIDGETS
        assert chat.saved[0].messages[1].content == ("- a\n" * 400).rstrip()
