"""Changing messages and titles, and continuing replies."""

from dataclasses import replace

import pytest
from driving import asked, messages, running, source
from scripted_engine import ESSAY, Gate

pytestmark = pytest.mark.process


async def test_f8_again_goes_to_the_message_before(chat):
    await chat.ask("exact one")
    await chat.ask("exact two")
    await chat.pilot.press("f8", "f8")
    await chat.until(lambda: chat.screen.prompt.text == "exact one")
    assert chat.screen.prompt.border_title == "changing message 1 of 2 · esc cancels"
    await chat.ask_instead("exact three")
    assert messages(chat) == ["exact three", "three"]
    await chat.type("/edit 2")
    await chat.until(lambda: len(chat.remarks) == 2)
    assert chat.remarks[1:] == ["/edit takes a whole number from 1 to 1."]


async def test_a_change_of_an_earlier_message_keeps_the_earlier_course_in_the_list(chat):
    for text in ("exact one", "exact two"):
        await chat.ask(text)
    await chat.type("/edit 1")
    await chat.ask_instead("exact three")
    changed, kept = chat.saved
    assert [message.content for message in changed.messages] == ["exact three", "three"]
    assert [message.content for message in kept.messages] == ["exact one", "one", "exact two", "two"]
    assert chat.remarks == ["The conversation before the change is kept: /load lists it."]
    await chat.pilot.press("f8")
    await chat.ask_instead("exact four")  # of the last message only
    assert len(chat.saved) == 2
    await chat.type(f"/load {kept.name}")
    await chat.until(lambda: messages(chat) == ["exact one", "one", "exact two", "two"])


async def test_a_reply_that_was_cut_goes_on_as_a_version_of_it(tmp_path):
    gate = Gate(hold_after=5)
    async with running(tmp_path, gate=gate) as chat:
        await chat.begin("why?", cycles=5)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.state.conversation.reply and chat.replies[0].has_class("-finished"))
        cut = chat.state.conversation.reply.content
        gate.opened.set()
        await chat.type("/continue")
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.state.engine.busy)
        assert [(turn.role, turn.content) for turn in asked(chat)[1].messages] == [
            ("user", "why?"),
            ("assistant", cut),
        ]
        await chat.until(lambda: source(chat.replies[0]) == ESSAY)
        assert [version.content for version in chat.saved[0].messages[1].versions] == [cut, ESSAY]


async def test_a_continued_reply_that_says_nothing_more_is_as_it_was(chat):
    await chat.ask("exact all")
    kept = chat.state.conversation.messages
    kept[-1] = replace(kept[-1], outcome="length")
    await chat.type("/continue")
    await chat.until(lambda: len(asked(chat)) == 2 and not chat.state.engine.busy)
    await chat.until(lambda: messages(chat) == ["exact all", "all"])
    assert chat.saved[0].messages[1].versions == ()


async def test_a_finished_reply_is_not_continued(chat):
    await chat.ask("exact all")
    await chat.type("/continue")
    await chat.until(
        lambda: (
            chat.remarks == ["The reply was not cut off, so it cannot be continued; /retry makes another."]
        )
    )
    assert len(asked(chat)) == 1
