"""A question and its reply: shown, saved, stopped, resumed in parts, and with the colours of token origins."""

from itertools import combinations

import pytest
from driving import asked, footer, messages, running, stored
from localspec.tui.widgets import transcript
from localspec.tui.widgets.markdown import Code
from localspec.tui.widgets.reply import STYLES, LiveTail
from localspec.tui.widgets.transcript import UserMessage
from scripted_engine import THOUGHT, Gate
from scripted_pairs import called
from textual.color import Color, rgb_to_lab
from textual.widgets import Static
from textual.widgets._markdown import MarkdownBlock

from localspec.conversations.conversations import StoredMessage
from localspec.engine.messages import LoadPair
from localspec.events import Origin
from localspec.models.names import of_file

pytestmark = pytest.mark.process

COLOURS = {STYLES[origin] for origin in (Origin.ACCEPTED, Origin.FIX, Origin.BONUS)}


async def test_streamed_markdown_looks_like_markdown_that_came_at_once(tmp_path):
    async with running(tmp_path, size=(100, 900)) as chat:  # all of it is near the view
        await chat.ask("tokens 900")
        streamed = await drawn_blocks(chat)
        await chat.screen.transcript.open(chat.state.conversation.messages)
        assert streamed == await drawn_blocks(chat)


async def drawn_blocks(chat):
    await chat.until(lambda: chat.replies and all(part.is_drawn for part in chat.replies[0].finished_parts))
    await chat.pilot.pause()
    return [(type(block), block._content.plain) for block in chat.replies[0].query("MarkdownBlock")]


async def test_an_error_of_the_engine_is_a_sentence_with_its_hint(chat):
    await chat.type("fail please")
    await chat.until(lambda: chat.screen.prompt.text == "fail please")
    assert "does not fit" in chat.notices[0]
    assert "/new" in chat.notices[0]
    await chat.type("exact fine")
    await chat.until(lambda: chat.replies and chat.replies[-1].has_class("-finished"))


async def test_the_reason_of_a_first_message_that_fails_is_on_the_screen_with_the_message(tmp_path):
    """The welcome and a long message leave no row of an ordinary terminal for it."""
    async with running(tmp_path, size=(80, 24)) as chat:
        await chat.type("fail\n" + "a long paste\n" * 100)
        await chat.until(lambda: "a long paste" in chat.screen.prompt.text and chat.notices)
        await chat.settled()
        assert "does not fit" in chat.drawn
        await chat.type("/new")
        await chat.until(lambda: "Write a haiku about rain" in chat.drawn)


async def test_reasoning_is_counted_and_folds(chat):
    await chat.ask("think first")
    head = chat.replies[0].query_one(".head", Static)
    assert str(head.content) == f"▸ thought for {chat.saved[0].messages[1].reasoning_tokens} tokens"
    await chat.pilot.press("ctrl+t")
    await chat.pilot.pause()
    assert THOUGHT.strip() in str(chat.replies[0].query_one(".thought", Static).content)
    assert chat.saved[0].messages[1].reasoning == THOUGHT


async def test_the_live_tail_marks_fixes_without_colour_alone(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=30)) as chat:
        await chat.begin("exact " + "word " * 400, cycles=30)
        await chat.until(lambda: "underline" in styles_of_tail(chat) and "italic" in styles_of_tail(chat))
        await chat.type("/tokens off")
        chat.engine.handler.gate.opened.set()
        await chat.until(lambda: not chat.state.engine.busy)


def styles_of_tail(chat):
    content = chat.replies[0].query_one(LiveTail).content
    return " ".join(str(span.style) for span in content.spans) if content else ""


async def test_a_notice_of_the_engine_is_shown(chat):
    await chat.ask("why off")
    assert any("Drafting is off" in notice for notice in chat.notices)


async def test_when_the_disk_is_full_the_reply_says_that_it_is_not_saved(monkeypatch, chat):

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("localspec.conversations.conversations.save", full)
    await chat.ask("exact hi")
    assert "NOT SAVED" in footer(chat.replies[0])
    assert "No space left" in chat.notices[0]


async def test_garbage_is_collected_once_nobody_waits_after_a_reply(tmp_path, monkeypatch):
    collections = []
    monkeypatch.setattr("localspec.tui.app.REST_SECONDS", 0.2)
    monkeypatch.setattr("localspec.tui.app.gc.collect", lambda: collections.append(chat.state.engine.busy))
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        await chat.until(lambda: collections)
        await chat.pilot.pause(0.5)
    assert collections == [False]


async def test_the_lines_of_a_poem_stay_lines(chat):
    poem = ["Rain on the garden,", "a single book, a warm cup:", "the evening is mine."]
    await chat.ask("exact " + "\n".join(poem))
    await chat.ask("exact - " + "\n  ".join(poem))
    await chat.until(lambda: [line.strip("▌ •") for line in chat.drawn.splitlines()].count(poem[1]) == 4)
    assert poem[0] + " " + poem[1] not in chat.drawn


async def test_remarks_stand_in_the_status_line_the_last_one_alone_and_never_over_the_prompt(tmp_path):
    async with running(tmp_path, size=(60, 20)) as chat:
        for command in ("/temp 0.5", "/nonsense", "/nonsense"):
            await chat.type(command)
            chat.screen.prompt.replace_text("a text that is being typed " * 2)
            await chat.until(lambda: chat.remarks)
        await chat.settled()
        assert chat.drawn.count("There is no command /nonsense.") == 1
        assert "temperature is" not in chat.drawn
        assert "a text that is being typed a text that is being typed" in chat.drawn
        assert not chat.notices


async def test_the_last_reply_shows_who_wrote_its_words_until_f2_or_the_next_question(chat):
    markdown = "exact ## A head\n\n- an *item* of a list\n- [a link](https://a.b)\n\n```py\nx = 1\n```\n"

    def looks():
        blocks = chat.replies[0].query(MarkdownBlock)
        return {str(span.style) for block in blocks for span in block._content.spans} & COLOURS

    await chat.ask(markdown)
    await chat.until(lambda: looks() == COLOURS)
    assert "accepted draft token" in chat.drawn
    for shown in (set(), COLOURS):
        await chat.pilot.press("f2")
        await chat.until(lambda shown=shown: looks() == shown)
        assert "item of a list" in chat.drawn
    await chat.ask("exact more")
    await chat.until(lambda: not looks())


async def test_folding_is_refused_where_nothing_can_be_reasoned(tmp_path):
    async with running(tmp_path, load=LoadPair(called("qwen3-8b+0.6b"))) as chat:
        await chat.type("/thinking")
        await chat.until(lambda: "scripted-8b does not reason before it answers" in chat.drawn)
        await chat.type("/think off")
        assert "think" not in chat.state.engine.settings
        await chat.ask("think")
        await chat.type("/thinking")
        assert not chat.screen.prompt.text


CHANGED = "So far this conversation was with some-file; from here on demo answers."


async def test_a_resumed_conversation_says_when_another_pair_answers_from_here_on(tmp_path):
    messages = StoredMessage("user", "hi"), StoredMessage("assistant", "ho")
    resumed = stored(tmp_path, *messages, pair="some-file")
    async with running(tmp_path, resumed=resumed) as chat:
        await chat.until(lambda: chat.notices == [CHANGED])
        assert chat.saved[0].pair == "some-file"
        await chat.ask("exact so")
        assert chat.saved[0].pair == "demo"
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert chat.notices == []


async def test_the_same_files_under_another_name_are_no_other_pair(tmp_path, tiny_gguf):
    """A file is called by its name, and by a name and a number where another file was opened later."""
    load = LoadPair(of_file(tiny_gguf()))
    messages = StoredMessage("user", "hi"), StoredMessage("assistant", "ho")
    both = ("/another.gguf", "/its-draft.gguf")  # a pair whose name finds both
    for files, earlier in ((load.pair.paths, ""), (both[:1], "/pair /another.gguf"), (both, "/pair tiny-2")):
        resumed = stored(tmp_path, *messages, pair="tiny-2", files=files)
        async with running(tmp_path, resumed=resumed, load=load) as chat:
            await chat.settled()
            assert len(chat.notices) == bool(earlier)
            assert f"{earlier} loads the earlier one." in chat.notices[0] if earlier else True


async def test_an_old_conversation_is_shown_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(transcript, "MOST", 8)
    monkeypatch.setattr(transcript, "FEWEST", 4)
    async with running(tmp_path, size=(100, 16)) as chat:
        for n in range(8):
            await chat.ask(f"exact {n}")
            assert len(chat.screen.transcript.children) <= 9
        assert chat.screen.query(".earlier")
        before = [str(message.content) for message in chat.screen.query(UserMessage)]
        chat.screen.transcript.scroll_home(animate=False)
        await chat.until(lambda: len(chat.screen.query(UserMessage)) > len(before))
        shown = [str(message.content) for message in chat.screen.query(UserMessage)]
        assert shown == [f"exact {n}" for n in range(8)][-len(shown) :]


async def test_notices_push_no_message_off_the_screen(tmp_path, monkeypatch):
    monkeypatch.setattr(transcript, "MOST", 8)
    monkeypatch.setattr(transcript, "FEWEST", 4)
    async with running(tmp_path, size=(100, 16)) as chat:
        for n in range(5):
            await chat.ask(f"exact {n}")
        kept = messages(chat)
        for n in range(10):
            await chat.type(f"/system be {n}")
            await chat.until(lambda n=n: f"System prompt: be {n}" in chat.notices)
            assert len(chat.notices) <= 8
        assert messages(chat) == kept == ["2", "exact 3", "3", "exact 4", "4"]
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(asked(chat)) == 6 and not chat.state.engine.busy)
        await chat.until(lambda: messages(chat) == kept)
        chat.screen.transcript.scroll_home(animate=False)
        await chat.until(
            lambda: (
                [str(e.content) for e in chat.screen.query(".earlier").results(Static)]
                == ["↑ 1 earlier message"]
            )
        )
        assert messages(chat) == ["0", "exact 1", "1", "exact 2", *kept]


APART = 20  # in CIELAB; 2 can just be seen
LEGIBLE = 4.5  # contrast of text, as accessibility rules want it
WORDS = ("accepted draft token", "corrected", "bonus")
CODE = "exact Why?\n\n```python\ndef add(one, two):\n    return one + two  # the sum of both\n```\n"


def drawn(chat, words):
    """The style in which a text is drawn on the screen."""
    for strip in chat.app.screen._compositor.render_strips():
        for segment in strip:
            if words in segment.text:
                return segment.style
    raise AssertionError(f"{words} is nowhere\n{chat.drawn}")


def shown(color, foreground):
    return Color(*color.get_truecolor(foreground=foreground))


def distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(rgb_to_lab(one), rgb_to_lab(other), strict=True)) ** 0.5


def contrast(one, other):
    dark, light = sorted(luminance(color) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def luminance(color):
    parts = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized
    )
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


async def test_origins_are_distinct_and_legible_in_every_theme(chat):
    await chat.ask("exact word")
    for theme in chat.app.available_themes:
        chat.app.theme = theme
        await chat.pilot.pause()
        styles = [drawn(chat, text) for text in (*WORDS, "tok/s")]
        grounds = [shown(style.bgcolor, foreground=False) for style in styles]
        inks = [shown(style.color, foreground=True) for style in styles]
        assert min(distance(*pair) for pair in combinations(grounds, 2)) >= APART, (theme, grounds)
        for ground, ink in zip(grounds[:3], inks, strict=False):
            assert contrast(ground, ink) >= LEGIBLE, (theme, ground, ink)


async def test_only_origins_colour_code_while_they_are_shown_also_in_another_theme(chat):
    await chat.ask(CODE)
    code = chat.replies[0].query_one(Code)
    for theme in ("localspec", "textual-light"):
        chat.app.theme = theme
        await chat.pilot.pause()
        looks = {str(span.style) for span in code._content.spans}
        assert looks
        assert all(look.removesuffix(" italic") in STYLES.values() for look in looks)
    await chat.pilot.press("f2")
    await chat.until(lambda: "$text-accent" in looks_of_code(chat))


def looks_of_code(chat):
    return {str(span.style) for code in chat.replies[0].query(Code) for span in code._content.spans}
