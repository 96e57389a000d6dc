"""Lists in replies: bullets, numbers and depth, drawn as they grow; and what draws them."""

from driving import resumed_with, running
from localspec.tui.widgets import markdown
from localspec.tui.widgets.markdown import HangingList, PlainContainer, ReplyMarkdown
from scripted_engine import Gate
from textual.widget import Widget

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


async def test_a_list_that_grows_wraps_only_what_is_new(tmp_path, monkeypatch):
    wrapped, lines = [], markdown.hanging_lines

    def counted(before, text, width):
        wrapped.append(text.plain)
        return lines(before, text, width)

    monkeypatch.setattr(markdown, "hanging_lines", counted)
    async with running(tmp_path) as chat:
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


async def test_containers_repeat_the_line_that_textual_draws(tmp_path):
    async with running(tmp_path, resumed=resumed_with(tmp_path, LIST)) as chat:
        await chat.until(lambda: lists(chat) == DRAWN)
        containers = [w for w in chat.screen.walk_children() if isinstance(w, PlainContainer)]
        assert len(containers) == 3
        for widget in containers:
            crop = widget.size.region
            drawn = [list(line.simplify()) for line in Widget.render_lines(widget, crop)]
            assert [list(line.simplify()) for line in widget.render_lines(crop)] == drawn


async def test_a_reply_waits_to_be_drawn_while_the_person_types(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("localspec.tui.screen.monotonic", lambda: now)
    gate = Gate(hold_after=3)
    async with running(tmp_path, gate=gate) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 3)
        reply = chat.state.engine.reply
        now += 1.0
        await chat.until(lambda: chat.screen._drawn_at == now)
        await chat.pilot.press("x")
        gate.hold_after = 6
        await chat.until(lambda: reply.tally.cycles == 6)
        now += 0.3
        await chat.pilot.press("y")
        now += 0.3  # half a second after the last drawing, and a tick is not behind a key
        await chat.screen.tick()
        assert reply.fresh
        await chat.pilot.press("z")
        await chat.until(lambda: not reply.fresh)
        gate.hold_after = 9
        await chat.until(lambda: reply.tally.cycles == 9)
        now += 1.0
        await chat.until(lambda: not reply.fresh)
