"""Changing what was said: any message, branches, titles, presets, replies that are continued or begun."""

import json
from dataclasses import replace

from driving import asked, messages, open_conversations, running, source
from localspec.tui.state.remembered import Presets
from scripted_engine import ESSAY, Gate

from localspec.chat import conversations


async def test_f8_again_goes_to_the_message_before(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        await chat.ask("exact two")
        await chat.pilot.press("f8", "f8")
        await chat.until(lambda: chat.screen.prompt.text == "exact one")
        assert chat.screen.prompt.border_title == "changing message 1 of 2 · esc leaves it"
        await chat.ask_instead("exact three")
        assert messages(chat) == ["exact three", "three"]
        await chat.type("/edit 2")
        await chat.until(lambda: len(chat.remarks) == 2)
        assert chat.remarks[1:] == ["/edit takes a whole number from 1 to 1."]


async def test_a_change_of_an_earlier_message_keeps_the_earlier_course_in_the_list(tmp_path):
    async with running(tmp_path) as chat:
        for text in ("exact one", "exact two"):
            await chat.ask(text)
        await chat.type("/edit 1")
        await chat.ask_instead("exact three")
        changed, kept = chat.saved
        assert [message.content for message in changed.messages] == ["exact three", "three"]
        assert [message.content for message in kept.messages] == ["exact one", "one", "exact two", "two"]
        assert chat.remarks == ["The earlier course is kept: /load lists it."]
        await chat.pilot.press("f8")
        await chat.ask_instead("exact four")  # of the last message only
        assert len(chat.saved) == 2
        await chat.type(f"/load {kept.name}")
        await chat.until(lambda: messages(chat) == ["exact one", "one", "exact two", "two"])


async def test_a_branch_leaves_the_conversation_as_it_is(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        await chat.ask("exact two")
        old = chat.state.conversation.journal.path
        await chat.type("/rename Numbers")
        await chat.type("/branch 2")
        await chat.until(lambda: chat.state.conversation.journal.path != old and chat.notices)
        assert messages(chat) == ["exact one", "one"]
        assert old.stem in chat.notices[-1]
        await chat.ask("exact three")
        assert len(conversations.read(old).messages) == 4
        assert len(chat.saved) == 2
        assert [one.title for one in chat.saved] == ["Numbers", "Numbers"]


async def test_a_reply_that_was_cut_goes_on_as_a_version_of_it(tmp_path):
    gate = Gate(hold_after=5)
    async with running(tmp_path, gate=gate) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.reply and chat.state.engine.reply.tally.cycles == 5)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.state.conversation.reply and chat.replies[0].has_class("-finished"))
        cut = chat.state.conversation.reply.content
        gate.opened.set()
        await chat.type("/continue")
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.state.engine.busy)
        assert [(turn["role"], turn["content"]) for turn in asked(chat)[1].messages] == [
            ("user", "why?"),
            ("assistant", cut),
        ]
        await chat.until(lambda: source(chat.replies[0]) == ESSAY)
        assert [version.content for version in chat.saved[0].messages[1].versions] == [cut, ESSAY]


async def test_a_continued_reply_that_says_nothing_more_is_as_it_was(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact all")
        kept = chat.state.conversation.messages
        kept[-1] = replace(kept[-1], outcome="length")
        await chat.type("/continue")
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.state.engine.busy)
        await chat.until(lambda: messages(chat) == ["exact all", "all"])
        assert chat.saved[0].messages[1].versions == ()


async def test_a_finished_reply_is_not_continued(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact all")
        await chat.type("/continue")
        await chat.until(
            lambda: chat.remarks == ["The reply is finished; /continue resumes one that was cut."]
        )
        assert len(asked(chat)) == 1


async def test_the_next_reply_begins_as_the_person_says(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/prefill Yes,")
        await chat.until(lambda: chat.remarks == ["The next reply begins with: Yes,"])
        await chat.ask("exact Yes, it does.")
        assert source(chat.replies[0]) == "Yes, it does."
        await chat.ask("exact no")
        assert [turn["role"] for turn in asked(chat)[1].messages] == ["user", "assistant", "user"]


async def test_conversations_are_found_by_their_words_and_given_titles(tmp_path):
    async with running(tmp_path) as chat:
        for word in ("apples", "pears"):
            await chat.ask(f"exact about {word}")
            await chat.pilot.press("ctrl+n")
            await chat.until(lambda: not chat.state.conversation.messages)
        await open_conversations(chat, rows=2)
        await chat.pilot.press(*"APP")
        dialog = chat.app.screen
        await chat.until(lambda: [found.title for found in dialog.table._items] == ["exact about apples"])
        await chat.pilot.press("enter")
        await chat.until(lambda: messages(chat) == ["exact about apples", "about apples"])
        await chat.type("/rename Apples and more")
        await chat.until(lambda: chat.remarks)
        assert {found.title for found in chat.saved} == {"Apples and more", "exact about pears"}


async def test_system_prompts_have_names(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/preset pirate Talk like a pirate.")
        await chat.until(lambda: chat.remarks == ["/preset pirate uses it from now on."])
        await chat.type("/preset pirate")
        await chat.until(lambda: chat.notices and chat.notices[-1] == "System prompt: Talk like a pirate.")
        await chat.ask("exact arr")
        assert asked(chat)[0].messages[0]["content"] == "Talk like a pirate."
        await chat.type("/preset pirate off")
        await chat.type("/preset")
        await chat.until(lambda: chat.notices[-1].startswith("Presets: none yet."))


async def test_a_damaged_file_of_presets_is_told_and_kept(tmp_path):
    damaged = '{"review": "You review code.", "poet": "Verse only.",}'
    (tmp_path / "presets.json").write_text(damaged)
    async with running(tmp_path) as chat:
        await chat.type("/preset review")
        await chat.until(lambda: chat.remarks and "presets.json cannot be read" in chat.remarks[-1])
        assert (tmp_path / "presets.json").read_text() == damaged
        await chat.type("/preset new x")
        await chat.until(lambda: "it is kept as presets.json.damaged" in chat.notices[-1])
        assert (tmp_path / "presets.json.damaged").read_text() == damaged
        assert chat.state.presets.load() == {"new": "x"}


def test_an_entry_that_is_no_text_stays_in_the_file_of_presets(tmp_path):
    path = tmp_path / "presets.json"
    path.write_text('{"a": 5, "b": "text"}')
    assert Presets(path).load() == {"b": "text"}
    Presets(path).save("c", "more")
    assert json.loads(path.read_text()) == {"a": 5, "b": "text", "c": "more"}
