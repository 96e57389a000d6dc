"""Asking again: retry, edit, and questions whose reply ended without a word."""

from driving import asked, running
from scripted_engine import Gate


async def test_a_reply_stopped_before_its_first_word_puts_the_question_back(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=0)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.prefill)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.screen.prompt.text == "why?")
        assert not chat.replies
        assert chat.saved[0].messages == ()


async def test_retry_replaces_the_last_reply(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.app.conductor.busy)
        await chat.until(lambda: len(chat.screen.dialogue.messages) == 2)
        assert [m.content for m in chat.saved[0].messages] == ["exact yes", "yes"]
        assert len(chat.replies) == 1


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
        await chat.screen.exchange.cut(1)
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert "no reply" in chat.remarks[0]
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(chat.screen.dialogue.messages) == 2)
        assert chat.saved[0].messages[1].content == "one"
