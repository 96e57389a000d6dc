"""Leaving while a reply runs: what was said is on the disk."""

import signal
import sys

import pytest
from driving import running
from scripted_engine import ESSAY, Gate


@pytest.mark.parametrize("leave", ["key", "command", "signal"])
async def test_leaving_in_mid_reply_keeps_its_text_as_stopped_without_waiting_for_the_engine(leave, tmp_path):
    if leave == "signal" and sys.platform == "win32":
        pytest.skip("Windows ends a program without telling it")
    async with running(tmp_path, gate=Gate(hold_after=9)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 9)
        if leave == "key":
            await chat.pilot.press("ctrl+q")
        elif leave == "command":
            await chat.type("/quit")
        else:
            signal.raise_signal(signal.SIGTERM)
        await chat.until(lambda: chat.app._exit)
        question, kept = chat.saved[0].messages
        assert question.content == "why?"
        assert kept.outcome == "cancelled"
        assert kept.content
        assert ESSAY.startswith(kept.content)


async def test_leaving_before_the_first_word_keeps_the_question(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=0)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.prefill)
        await chat.pilot.press("ctrl+q")
        assert [m.content for m in chat.saved[0].messages] == ["why?"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a program without telling it")
async def test_a_terminal_that_is_closed_leaves_the_conversation_to_others(tmp_path, monkeypatch):
    async with running(tmp_path) as chat:
        await chat.ask("why?")
        with monkeypatch.context() as patch:
            raised = []
            patch.setattr(signal, "signal", lambda *_: None)
            patch.setattr(signal, "raise_signal", raised.append)
            await chat.app._hang_up()
        assert raised == [signal.SIGHUP]
        assert list((tmp_path / "conversations").glob("*.lock")) == []
