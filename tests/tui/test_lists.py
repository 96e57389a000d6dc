"""Lists and tables in replies: as they grow, in few widgets, at the same place."""

import time
from itertools import pairwise

import pytest
from driving import resumed_with, running, source
from localspec.tui.screen import ChatScreen
from localspec.tui.widgets import markdown
from localspec.tui.widgets.markdown import HangingList, PlainContainer, ReplyMarkdown
from scripted_engine import Gate, Pace
from textual.widget import Widget

pytestmark = pytest.mark.process

LIST = """\
9. first

   its second paragraph
10. with
    - a dash
    - and another
      1. deep
      - deeper
-
- alone
"""
DRAWN = """\
  9. first
     its second paragraph
 10. with
     • a dash
     • and another
        1. deep
       ▪ deeper
•
• alone"""


def lists(chat):
    found = chat.screen.query(HangingList)
    return "\n".join(line.rstrip() for block in found for line in block._content.plain.splitlines())


async def test_paragraphs_hang_behind_bullets_and_numbers(tmp_path):
    async with running(tmp_path, resumed=resumed_with(tmp_path, LIST)) as chat:
        await chat.until(lambda: lists(chat) == DRAWN)
        containers = [w for w in chat.screen.walk_children() if isinstance(w, PlainContainer)]
        assert len(containers) == 3
        for widget in containers:  # they repeat the line that Textual draws
            crop = widget.size.region
            drawn = [list(line.simplify()) for line in Widget.render_lines(widget, crop)]
            assert [list(line.simplify()) for line in widget.render_lines(crop)] == drawn


async def test_a_list_that_grows_wraps_only_what_is_new(monkeypatch, chat):
    wrapped, lines = [], markdown.hanging_lines

    def counted(before, text, width):
        wrapped.append(text.plain)
        return lines(before, text, width)

    monkeypatch.setattr(markdown, "hanging_lines", counted)
    document = ReplyMarkdown()
    await chat.screen.transcript.add(document)
    for item in ("- one\n", "- **two**\n", "- three\n"):
        await document.append(item)
        await chat.pilot.pause()
    assert lists(chat) == "• one\n• two\n• three"
    assert wrapped == ["one", "two", "three"]
    await document.append("\ntext\n")
    assert [type(block).__name__ for block in document.children] == ["HangingList", "MarkdownParagraph"]


async def test_a_list_with_code_in_it_is_drawn_by_textual(tmp_path):
    reply = "- text\n\n  ```py\n  x = 1\n  ```\n- more\n"
    async with running(tmp_path, resumed=resumed_with(tmp_path, reply)) as chat:
        await chat.until(lambda: "x = 1" in chat.drawn and "• more" in chat.drawn)
        assert not chat.screen.query(HangingList)


async def test_a_reply_waits_to_be_drawn_while_the_person_types(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("localspec.tui.screen.monotonic", lambda: now)
    gate = Gate(hold_after=3)
    async with running(tmp_path, gate=gate) as chat:
        await chat.begin("why?", cycles=3)
        reply = chat.state.engine.reply
        now += 1.0
        await chat.until(lambda: chat.screen._drawn_at == now)
        await chat.pilot.press("x")
        gate.hold_after = 6
        await chat.until(lambda: reply.tally.sums.cycles == 6)
        now += 0.3
        await chat.pilot.press("y")
        now += 0.3  # half a second after the last drawing, and a tick is not behind a key
        await chat.screen.tick()
        assert reply.shown < len(reply.pieces)
        await chat.pilot.press("z")
        await chat.until(lambda: reply.shown == len(reply.pieces))
        gate.hold_after = 9
        await chat.until(lambda: reply.tally.sums.cycles == 9)
        now += 1.0
        await chat.until(lambda: reply.shown == len(reply.pieces))


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


async def test_a_list_that_streams_holds_few_widgets(chat):
    await chat.ask("exact " + "- a\n" * 400)
    await chat.until(lambda: len(drawn(chat)) < 10)
    assert widgets(chat) < MOST_WIDGETS
    assert chat.saved[0].messages[1].content == ("- a\n" * 400).rstrip()


async def test_a_reply_is_drawn_at_most_ten_times_a_second(tmp_path, monkeypatch):
    """Two frames for each drawing, and drawings a fifth of a second apart, however busy the machine is."""
    async with running(tmp_path, pace=Pace(cycle_seconds=0.02)) as chat:
        frames, drawings, display, draw = [], [], type(chat.app)._display, ChatScreen._draw
        monkeypatch.setattr(
            type(chat.app), "_display", lambda app, *shown: (frames.append(None), display(app, *shown))
        )

        def counted(screen):
            drawings.append(time.monotonic())
            return draw(screen)

        await chat.type("tokens 4000")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.sums.cycles > 50)
        monkeypatch.setattr(ChatScreen, "_draw", counted)
        frames.clear()
        await chat.until(lambda: chat.state.engine.reply.tally.sums.cycles > 150)
        assert len(drawings) > 2
        assert min(later - earlier for earlier, later in pairwise(drawings)) > 0.199
        assert len(frames) <= 2 * len(drawings) + 3  # the drawing before the first, and a blink
        await chat.pilot.press("escape")
