"""Asking again: retry, edit, and questions whose reply ended without a word."""

import asyncio
import threading

import pytest
import scripted_engine
from driving import asked, cannot_start, messages, running
from scripted_engine import Gate

from localspec import conversations
from localspec.engine.messages import Died, Failure


async def reading(chat, text):
    """Send a message; the engine has read it and says nothing."""
    await chat.type(text)
    await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.prefill)


async def held(chat, ask):
    """Ask, and hold the reply before its first word."""
    chat.engine.workshop.gate.hold_after = 0
    await ask()
    await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.prefill)


async def stopped(chat, ask, _monkeypatch):
    await held(chat, ask)
    await chat.pilot.press("escape")
    await chat.until(lambda: not chat.app.conductor.busy)


async def left(chat, ask, _monkeypatch):
    await held(chat, ask)
    await chat.pilot.press("ctrl+q")
    await chat.until(lambda: chat.app._exit)


async def failed(chat, ask, _monkeypatch):
    await held(chat, ask)
    chat.engine._reports.append(Failure("ContextFull", "It does not fit.", ""))
    await chat.until(lambda: any("does not fit" in remark for remark in chat.remarks))


async def died(chat, ask, _monkeypatch):
    await held(chat, ask)
    chat.engine.die(Died("It is gone.", ""))
    await chat.until(lambda: any("is gone" in remark for remark in chat.remarks))


async def said_nothing(chat, ask, monkeypatch):
    monkeypatch.setattr(scripted_engine, "answer_to", lambda _prompt: ("", ""))
    await ask()
    await chat.until(lambda: any("without a word" in remark for remark in chat.remarks))


async def found_no_engine(chat, ask, monkeypatch):
    monkeypatch.setattr(chat.engine, "start", cannot_start)
    chat.engine.close()
    await ask()
    await chat.until(lambda: any("cannot fork" in remark for remark in chat.remarks))


END_WITHOUT_A_WORD = {
    "escape": stopped,
    "failure": failed,
    "death": died,
    "nothing": said_nothing,
    "no engine": found_no_engine,
    "quit": left,
}


async def test_a_reply_stopped_before_its_first_word_puts_the_question_back(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=0)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.prefill)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.screen.prompt.text == "why?")
        assert not chat.replies
        assert chat.saved[0].messages == ()


async def test_a_question_without_a_word_of_reply_stays_when_the_prompt_holds_another_text(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=0)) as chat:
        await reading(chat, "why?")
        await chat.pilot.press(*"next", "escape")
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == ["The last message has no reply.\n^r asks for one."]
        assert chat.screen.prompt.text == "next"
        assert [m.content for m in chat.saved[0].messages] == ["why?"]
        assert messages(chat) == ["why?"]


@pytest.mark.parametrize(("said", "waiting"), [("", ""), ("", "next"), ("\n", "")])
async def test_a_reply_that_ends_without_a_word_says_so(tmp_path, monkeypatch, said, waiting):
    typed = threading.Event()
    monkeypatch.setattr(scripted_engine, "answer_to", lambda _prompt: (said, "") if typed.wait(20) else None)
    async with running(tmp_path) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.busy)
        chat.screen.prompt.replace_text(waiting)
        typed.set()
        await chat.until(lambda: chat.remarks)
        assert chat.remarks == [
            "The last message has no reply.\n^r asks for one."
            if waiting
            else "The reply ended without a word.\nThe message is back in the prompt."
        ]
        assert chat.screen.prompt.text == (waiting or "why?")


async def test_retry_replaces_the_last_reply(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.app.conductor.busy)
        await chat.until(lambda: len(chat.screen.dialogue.messages) == 2)
        assert [m.content for m in chat.saved[0].messages] == ["exact yes", "yes"]
        assert len(chat.replies) == 1


@pytest.mark.parametrize("end", ["escape", "failure", "death", "nothing", "no engine", "quit"])
async def test_a_reply_stays_when_the_one_that_should_replace_it_brings_no_word(tmp_path, end, monkeypatch):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        await chat.ask("exact good answer")
        await END_WITHOUT_A_WORD[end](chat, lambda: chat.pilot.press("ctrl+r"), monkeypatch)
        assert [m.content for m in chat.saved[0].messages] == ["exact good answer", "good answer"]
        if end == "quit":
            return
        await chat.until(lambda: messages(chat) == ["exact good answer", "good answer"])
        assert chat.screen.prompt.text == ""
        assert bool(chat.remarks) == (end != "escape")
        monkeypatch.undo()
        gate.hold_after = None
        await chat.ask("exact next")
        assert [t.content for t in asked(chat)[-1].turns] == [
            "exact good answer",
            "good answer",
            "exact next",
        ]


@pytest.mark.parametrize("end", ["escape", "failure", "death", "nothing", "no engine"])
async def test_a_changed_question_without_a_word_of_reply_is_being_changed_again(tmp_path, end, monkeypatch):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        await chat.ask("exact good answer")
        await chat.pilot.press("f8")
        await END_WITHOUT_A_WORD[end](chat, lambda: chat.type("exact better"), monkeypatch)
        await chat.until(lambda: chat.screen.prompt.text == "exact better")
        assert [m.content for m in chat.saved[0].messages] == ["exact good answer", "good answer"]
        await chat.until(lambda: messages(chat) == ["exact good answer", "good answer"])
        monkeypatch.undo()
        gate.hold_after = None
        await chat.pilot.press("enter")
        await chat.until(lambda: [m.content for m in chat.saved[0].messages] == ["exact better", "better"])
        await chat.until(lambda: messages(chat) == ["exact better", "better"])


async def test_retrying_while_the_reply_is_being_saved_replaces_it_all_the_same(tmp_path, monkeypatch):
    async with running(tmp_path) as chat:
        saving, written = threading.Event(), threading.Event()
        write = conversations.append_json_lines

        def slowly(path, values, **kwargs):
            values = list(values)
            if "assistant" in str(values):
                saving.set()
                written.wait(20)
            write(path, values, **kwargs)

        monkeypatch.setattr(conversations, "append_json_lines", slowly)
        chat.screen.prompt.replace_text("exact yes")
        chat.app.simulate_key("enter")  # the pilot would wait for the end of the tick
        await asyncio.to_thread(saving.wait, 20)
        chat.app.simulate_key("ctrl+r")
        await asyncio.sleep(0.3)  # a command that does not wait would run now
        written.set()
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.app.conductor.busy)
        await chat.until(lambda: chat.replies[-1].has_class("-finished"))
        assert messages(chat) == ["exact yes", "yes"]
        assert [m.content for m in chat.saved[0].messages] == ["exact yes", "yes"]


async def test_editing_replaces_the_last_question_only_when_it_is_sent(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        await chat.pilot.press("f8")
        assert chat.screen.prompt.text == "exact yes"
        await chat.pilot.press("escape")
        assert chat.screen.prompt.text == ""
        assert len(chat.saved[0].messages) == 2
        await chat.pilot.press("f8")
        await chat.type("exact no")
        await chat.until(lambda: [m.content for m in chat.saved[0].messages] == ["exact no", "no"])


async def test_an_unanswered_question_of_a_resumed_conversation_can_be_retried(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        await chat.screen.dialogue.keep(1)
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert "no reply" in chat.remarks[0]
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(chat.screen.dialogue.messages) == 2)
        assert chat.saved[0].messages[1].content == "one"
