"""A question and its reply: shown, saved, stopped, and what goes along to the engine."""

from driving import asked, footer, running, source
from localspec.tui.widgets.reply import STYLES, LiveTail
from scripted_engine import ESSAY, THOUGHT, Gate
from textual.widgets import Static
from textual.widgets._markdown import MarkdownBlock

from localspec.engine.messages import LoadPair
from localspec.events import Origin

STYLES = {STYLES[origin] for origin in (Origin.ACCEPTED, Origin.FIX, Origin.BONUS)}


async def test_a_reply_is_shown_saved_and_counted(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("why?")
        assert source(chat.replies[0]) == ESSAY
        assert "guesses kept" in footer(chat.replies[0])
        assert [m.content for m in chat.saved[0].messages] == ["why?", ESSAY]
        assert chat.saved[0].pair == "demo"


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


async def test_the_conversation_so_far_goes_with_every_question(tmp_path):
    async with running(tmp_path, system="be brief") as chat:
        await chat.ask("exact one")
        await chat.ask("exact two")
        turns = asked(chat)[-1].messages
        assert [(t["role"], t["content"]) for t in turns] == [
            ("system", "be brief"),
            ("user", "exact one"),
            ("assistant", "one"),
            ("user", "exact two"),
        ]


async def test_escape_stops_a_reply_and_keeps_its_text(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=9)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 9)
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.state.engine.busy)
        await chat.until(lambda: footer(chat.replies[0]).startswith("stopped"))
        kept = chat.saved[0].messages[1]
        assert kept.outcome == "cancelled"
        assert kept.content
        assert ESSAY.startswith(kept.content)
        assert source(chat.replies[0]) == kept.content


async def test_a_stopped_reply_is_context_for_the_next_question(tmp_path):
    gate = Gate(hold_after=5)
    async with running(tmp_path, gate=gate) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 5)
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.state.engine.busy)
        gate.opened.set()
        await chat.ask("exact more")
        assert asked(chat)[-1].messages[1]["content"] == chat.saved[0].messages[1].content


async def test_a_second_question_waits_for_the_first(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await chat.type("why?")
        await chat.type("and how?")
        await chat.until(lambda: chat.remarks)
        assert chat.screen.prompt.text == "and how?"
        assert len(asked(chat)) == 1


async def test_an_error_of_the_engine_is_a_sentence_with_its_hint(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("fail please")
        await chat.until(lambda: chat.screen.prompt.text == "fail please")
        assert "does not fit" in chat.notices[0]
        assert "/new" in chat.notices[0]
        await chat.type("exact fine")
        await chat.until(lambda: chat.replies and chat.replies[-1].has_class("-finished"))


async def test_reasoning_is_counted_and_folds(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("think first")
        head = chat.replies[0].query_one(".head", Static)
        assert str(head.content) == f"▸ thought for {chat.saved[0].messages[1].reasoning_tokens} tokens"
        await chat.pilot.press("ctrl+t")
        await chat.pilot.pause()
        assert THOUGHT.strip() in str(chat.replies[0].query_one(".thought", Static).content)
        assert chat.saved[0].messages[1].reasoning == THOUGHT


async def test_the_live_tail_marks_fixes_without_colour_alone(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=30)) as chat:
        await chat.type("exact " + "word " * 400)
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 30)
        await chat.until(lambda: "underline" in styles_of_tail(chat) and "italic" in styles_of_tail(chat))
        await chat.type("/tokens off")
        chat.engine.handler.gate.opened.set()
        await chat.until(lambda: not chat.state.engine.busy)


def styles_of_tail(chat):
    content = chat.replies[0].query_one(LiveTail).content
    return " ".join(str(span.style) for span in content.spans) if content else ""


async def test_a_notice_of_the_engine_is_shown(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("why off")
        assert any("Drafting is off" in notice for notice in chat.notices)


async def test_when_the_disk_is_full_the_reply_says_that_it_is_not_saved(tmp_path, monkeypatch):
    async with running(tmp_path) as chat:

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("localspec.chat.conversations.append_json_lines", full)
        await chat.ask("exact hi")
        assert "NOT SAVED" in footer(chat.replies[0])
        assert "No space left" in chat.notices[0]


async def test_quitting_in_the_middle_of_a_reply_waits_for_nothing_and_keeps_the_question(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=2)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 2)
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: not chat.app.is_running and not chat.engine.alive)
    assert chat.saved[0].messages[0].content == "why?"


async def test_garbage_is_collected_once_nobody_waits_after_a_reply(tmp_path, monkeypatch):
    collections = []
    monkeypatch.setattr("localspec.tui.app.REST_SECONDS", 0.2)
    monkeypatch.setattr("localspec.tui.app.gc.collect", lambda: collections.append(chat.state.engine.busy))
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        await chat.until(lambda: collections)
        await chat.pilot.pause(0.5)
    assert collections == [False]


async def test_the_lines_of_a_poem_stay_lines(tmp_path):
    poem = ["Rain on the garden,", "a single book, a warm cup:", "the evening is mine."]
    async with running(tmp_path) as chat:
        await chat.ask("exact " + "\n".join(poem))
        await chat.ask("exact - " + "\n  ".join(poem))
        await chat.until(lambda: [line.strip("▌ •") for line in chat.drawn.splitlines()].count(poem[1]) == 4)
        assert poem[0] + " " + poem[1] not in chat.drawn


async def test_text_meter_status_and_prompt_begin_in_one_column(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact " + "word " * 10)
        await chat.type("/temp 0.5")
        begins = (
            "localspec",
            "exact word",
            "word word",
            "tokens · ",
            "tokens a pass",
            "temperature",
            "Ask",
            "↵",
        )
        for words in begins:
            found = [line for line in chat.drawn.splitlines() if words in line[:22]]
            assert found, words
            assert all(line[:2].strip("▌│ ") == "" != line[2].strip() for line in found), words


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


async def test_the_last_reply_shows_who_wrote_its_words_until_f2_or_the_next_question(tmp_path):
    markdown = "exact ## A head\n\n- an *item* of a list\n- [a link](https://a.b)\n\n```py\nx = 1\n```\n"

    def looks():
        blocks = chat.replies[0].query(MarkdownBlock)
        return {str(span.style) for block in blocks for span in block._content.spans} & set(STYLES)

    async with running(tmp_path) as chat:
        await chat.ask(markdown)
        await chat.until(lambda: looks() == STYLES)
        assert "guessed and kept" in chat.drawn
        for shown in (set(), STYLES):
            await chat.pilot.press("f2")
            await chat.until(lambda shown=shown: looks() == shown)
            assert "item of a list" in chat.drawn
        await chat.ask("exact more")
        await chat.until(lambda: not looks())


async def test_folding_is_refused_where_nothing_can_be_reasoned(tmp_path):
    async with running(tmp_path, load=LoadPair(pair="qwen3-8b+0.6b")) as chat:
        await chat.type("/thinking")
        await chat.until(lambda: "scripted-8b does not reason before it answers" in chat.drawn)
        await chat.ask("think")
        await chat.type("/thinking")
        assert not chat.screen.prompt.text


async def test_a_remark_about_a_reply_goes_with_the_next_one(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: "The earlier reply is kept" in chat.drawn)
        chat.pairs.gate.hold_after = 0
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: chat.state.engine.busy)
        await chat.settled()
        assert "The earlier reply is kept" not in chat.drawn
