"""Asking again: retry, edit, and questions whose reply ended without a word."""

import asyncio
import itertools
import re
import threading

import pytest
import scripted_engine
from driving import asked, cannot_start, footer, messages, running, source
from localspec.tui.widgets.lines import Line
from scripted_engine import Gate

from localspec.conversations import conversations
from localspec.engine.messages import Died, Failure

pytestmark = pytest.mark.process


async def held(chat, ask):
    """Ask, and hold the reply before its first word."""
    chat.engine.handler.gate.hold_after = 0
    await ask()
    await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.prefill)


async def stopped(chat, ask, _monkeypatch):
    await held(chat, ask)
    await chat.pilot.press("escape")
    await chat.until(lambda: not chat.state.engine.busy)


async def left(chat, ask, _monkeypatch):
    await held(chat, ask)
    await chat.pilot.press("ctrl+q")
    await chat.until(lambda: chat.app._exit)


async def failed(chat, ask, _monkeypatch):
    await held(chat, ask)
    chat.engine._reports.append(Failure("ContextFull", "It does not fit.", ""))
    await chat.until(lambda: any("does not fit" in notice for notice in chat.notices))


async def died(chat, ask, _monkeypatch):
    await held(chat, ask)
    chat.engine.die(Died("It is gone.", ""))
    await chat.until(lambda: any("is gone" in notice for notice in chat.notices))


async def nothing_shown(chat, ask, monkeypatch):
    monkeypatch.setattr(scripted_engine, "answer_to", lambda _prompt: ("", ""))
    await ask()
    await chat.until(lambda: any("without a word" in notice for notice in chat.notices))


async def found_no_engine(chat, ask, monkeypatch):
    monkeypatch.setattr(chat.engine, "start", cannot_start)
    chat.engine.close()
    await ask()
    await chat.until(lambda: any("cannot fork" in notice for notice in chat.notices))


END_WITHOUT_A_WORD = (stopped, failed, died, nothing_shown, found_no_engine, left)


@pytest.mark.parametrize(("words", "waiting"), [("", ""), ("", "next"), ("\n", "")])
async def test_a_reply_that_ends_without_a_word_says_so(monkeypatch, words, waiting, chat):
    typed = threading.Event()
    monkeypatch.setattr(
        scripted_engine, "answer_to", lambda _prompt: (words, "") if typed.wait(300) else None
    )
    await chat.type("why?")
    await chat.until(lambda: chat.state.engine.busy)
    chat.screen.prompt.replace_text(waiting)
    typed.set()
    await chat.until(lambda: chat.notices)
    assert chat.notices == [
        "The last message has no reply.\n/retry asks for one."
        if waiting
        else "The reply ended without a word.\nThe message is back in the prompt."
    ]
    assert chat.screen.prompt.text == (waiting or "why?")


async def test_meter_and_context_are_those_of_the_version_that_is_shown(tmp_path):
    async with running(tmp_path) as chat:
        meter = chat.screen.query_one("#meter", Line)
        await chat.ask("tokens 30")
        first = str(meter.content)
        await chat.type("/seed 9")
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.state.engine.busy)
        await chat.until(lambda: "‹2/2›" in footer(chat.replies[0]))
        assert str(meter.content) != first
        await chat.pilot.press("f5")
        await chat.until(lambda: "‹1/2›" in footer(chat.replies[0]))
        await chat.until(lambda: str(meter.content) == first)
        assert chat.screen.prompt.border_subtitle == "context 70 / 8,192"
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert chat.screen.prompt.border_subtitle == "context 8,192"


@pytest.mark.parametrize("end", END_WITHOUT_A_WORD)
async def test_a_reply_stays_when_the_one_that_should_replace_it_brings_no_word(tmp_path, end, monkeypatch):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        await chat.ask("exact good answer")
        await end(chat, lambda: chat.pilot.press("ctrl+r"), monkeypatch)
        assert [m.content for m in chat.saved[0].messages] == ["exact good answer", "good answer"]
        if end is left:
            return
        await chat.until(lambda: messages(chat) == ["exact good answer", "good answer"])
        assert chat.screen.prompt.text == ""
        assert bool(chat.notices) == (end is not stopped)
        monkeypatch.undo()
        gate.hold_after = None
        await chat.ask("exact next")
        assert [t.content for t in asked(chat)[-1].messages] == [
            "exact good answer",
            "good answer",
            "exact next",
        ]


@pytest.mark.parametrize("end", END_WITHOUT_A_WORD)
async def test_a_changed_question_without_a_word_of_reply_is_being_changed_again(tmp_path, end, monkeypatch):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        await chat.ask("exact good answer")
        await chat.pilot.press("f8")
        await end(chat, lambda: chat.type("exact better"), monkeypatch)
        assert [m.content for m in chat.saved[0].messages] == ["exact good answer", "good answer"]
        if end is left:
            return
        await chat.until(lambda: chat.screen.prompt.text == "exact better")
        await chat.until(lambda: messages(chat) == ["exact good answer", "good answer"])
        monkeypatch.undo()
        gate.hold_after = None
        await chat.pilot.press("enter")
        await chat.until(lambda: [m.content for m in chat.saved[0].messages] == ["exact better", "better"])
        await chat.until(lambda: messages(chat) == ["exact better", "better"])


async def retry(chat):
    """Generate the last reply again, and wait until it is over."""
    versions = len(chat.state.conversation.reply.versions) or 1
    await chat.pilot.press("ctrl+r")
    await chat.until(lambda: len(chat.state.conversation.reply.versions) == versions + 1)
    await chat.until(lambda: chat.replies[-1].has_class("-finished") and not chat.state.engine.busy)


@pytest.fixture
def numbered(monkeypatch):
    """Every reply of the engine says how many there were."""
    count = itertools.count(1)
    monkeypatch.setattr(scripted_engine, "answer_to", lambda _prompt: (f"reply {next(count)}", ""))


def shown(chat):
    """The last reply on the screen, and which version of how many its footer says it is."""
    found = re.match(r"‹(\d)/(\d)› · ", footer(chat.replies[-1]))
    return source(chat.replies[-1]), found and found.groups()


async def test_every_version_of_a_reply_stays_and_can_be_gone_on_with(tmp_path, numbered):
    async with running(tmp_path) as chat:
        await chat.ask("why?")
        assert shown(chat) == ("reply 1", None)
        await retry(chat)
        assert shown(chat) == ("reply 2", ("2", "2"))
        await retry(chat)
        assert shown(chat) == ("reply 3", ("3", "3"))
        await chat.pilot.press("f5")
        await chat.until(lambda: shown(chat) == ("reply 2", ("2", "3")))
        await chat.type("/version 1")
        await chat.until(lambda: shown(chat) == ("reply 1", ("1", "3")))
        await chat.pilot.press("f5")
        await chat.until(lambda: shown(chat) == ("reply 3", ("3", "3")))
        await chat.pilot.press("f5")
        await chat.until(lambda: shown(chat) == ("reply 2", ("2", "3")))
        await chat.ask("and?")
        assert [turn.content for turn in asked(chat)[-1].messages] == ["why?", "reply 2", "and?"]
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert messages(chat) == ["why?", "reply 2", "and?", "reply 4"]
        await chat.until(lambda: all(reply.finished_parts[0].is_drawn for reply in chat.replies))


async def test_versions_that_there_are_not_are_reported(numbered, chat):
    await chat.type("/version 9")
    assert chat.remarks == ["There is no reply yet."]
    await chat.ask("why?")
    await chat.pilot.press("f5")
    await chat.until(lambda: "one version" in chat.remarks[-1])
    await retry(chat)
    for wrong in ("0", "3", "x", "-1"):
        chat.remarks.clear()
        await chat.type(f"/version {wrong}")
        await chat.until(lambda: "from 1 to 2" in "".join(chat.remarks))
    assert shown(chat) == ("reply 2", ("2", "2"))


async def test_an_engine_that_dies_in_a_second_version_leaves_the_first(tmp_path, numbered):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        await chat.ask("why?")
        before = chat.saved
        gate.hold_after = 1
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.sums.cycles == 1)
        assert chat.saved == before  # a crash of the whole program now loses nothing
        chat.engine.die(Died("It is gone.", ""))
        await chat.until(lambda: shown(chat)[1] == ("2", "2"))
        assert [version.outcome for version in chat.saved[0].messages[1].versions] == ["stop", "died"]


async def test_a_crash_before_the_first_word_of_a_changed_message_loses_nothing_of_what_it_replaces(tmp_path):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        for text in ("exact one", "exact two"):
            await chat.ask(text)
        before = chat.saved
        gate.hold_after = 0
        await chat.type("/edit 1")
        await chat.begin("exact changed", cycles=0)
        assert chat.saved == before  # a crash of the whole program now loses nothing
        gate.opened.set()
        await chat.until(lambda: [m.content for m in chat.saved[0].messages] == ["exact changed", "changed"])


async def test_the_versions_of_a_reply_survive_a_change_of_its_question_that_brought_no_word(
    tmp_path, numbered, monkeypatch
):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        await chat.ask("why?")
        await retry(chat)
        await chat.pilot.press("f8")
        await stopped(chat, lambda: chat.type("why not?"), monkeypatch)
        await chat.until(lambda: messages(chat) == ["why?", "reply 2"])
        assert [version.content for version in chat.saved[0].messages[1].versions] == ["reply 1", "reply 2"]
        await chat.pilot.press("escape", "f5")
        await chat.until(lambda: shown(chat) == ("reply 1", ("1", "2")))


async def test_what_was_being_typed_comes_back_after_a_change(chat):
    await chat.ask("exact yes")
    for end in (lambda: chat.pilot.press("escape"), lambda: chat.type("exact no")):
        chat.screen.prompt.replace_text("a long\ndraft")
        await chat.pilot.press("f8", "f8")
        assert chat.screen.prompt.text == "exact yes"
        await end()
        await chat.until(lambda: chat.screen.prompt.text == "a long\ndraft")
        assert chat.screen.editing is None
    await chat.until(lambda: messages(chat) == ["exact no", "no"])


async def test_undo_brings_back_what_a_change_or_an_earlier_prompt_took_the_place_of(chat):
    await chat.ask("exact yes")
    for key in ("f8", "up"):
        chat.screen.prompt.replace_text("")
        await chat.pilot.press(*"draft")
        await chat.pilot.press(key)
        assert chat.screen.prompt.text == "exact yes"
        await chat.pilot.press("ctrl+z")
        assert chat.screen.prompt.text == "draft"
        await chat.pilot.press("escape")
    await chat.pilot.press("f8", "x", "escape")
    assert chat.screen.prompt.text == "draft"
    await chat.pilot.press("ctrl+z")
    assert chat.screen.prompt.text == "exact yesx"


async def test_a_change_without_a_word_of_reply_leaves_a_draft_alone_and_is_recalled_by_up(
    tmp_path, monkeypatch
):
    async with running(tmp_path, gate=Gate()) as chat:
        await chat.ask("exact good answer")
        chat.screen.prompt.replace_text("draft")
        await chat.pilot.press("f8")
        await stopped(chat, lambda: chat.type("exact better"), monkeypatch)
        await chat.until(lambda: messages(chat) == ["exact good answer", "good answer"])
        assert [m.content for m in chat.saved[0].messages] == ["exact good answer", "good answer"]
        assert chat.screen.prompt.text == "draft"
        await chat.pilot.press("up")
        assert chat.screen.prompt.text == "exact better"


@pytest.mark.parametrize("key", ["ctrl+r", "ctrl+n"])
async def test_a_draft_comes_back_when_something_else_ends_the_change(key, chat):
    await chat.ask("exact yes")
    chat.screen.prompt.replace_text("draft")
    await chat.pilot.press("f8", key)
    await chat.until(lambda: chat.screen.prompt.text == "draft")
    assert chat.screen.editing is None


async def test_retrying_while_the_reply_is_being_saved_replaces_it_all_the_same(monkeypatch, chat):
    saving, written = threading.Event(), threading.Event()
    write = conversations.save

    def slowly(folder, talk):
        if len(talk.messages) == 2:
            saving.set()
            written.wait(300)
        write(folder, talk)

    monkeypatch.setattr(conversations, "save", slowly)
    chat.screen.prompt.replace_text("exact yes")
    chat.app.simulate_key("enter")  # the pilot would wait for the end of the tick
    await asyncio.to_thread(saving.wait, 300)
    chat.app.simulate_key("ctrl+r")
    await asyncio.sleep(0.3)  # a command that does not wait would run now
    written.set()
    await chat.until(lambda: len(asked(chat)) == 2 and not chat.state.engine.busy)
    await chat.until(lambda: chat.replies[-1].has_class("-finished"))
    assert messages(chat) == ["exact yes", "yes"]
    assert [m.content for m in chat.saved[0].messages] == ["exact yes", "yes"]


async def test_an_unanswered_question_of_a_resumed_conversation_can_be_retried(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        del chat.state.conversation.messages[1:]
        await chat.state.conversation.save()
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert "no reply" in chat.notices[0]
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(chat.state.conversation.messages) == 2)
        assert chat.notices == []
        assert chat.saved[0].messages[1].content == "one"
