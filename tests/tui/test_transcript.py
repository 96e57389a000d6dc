"""The conversation on the screen: resumed, long, and in parts."""

from driving import asked, messages, running, source
from localspec.tui.widgets import transcript
from localspec.tui.widgets.transcript import UserMessage
from textual.widgets import Static

from localspec.chat import conversations
from localspec.chat.conversations import Journal, StoredMessage


async def test_a_conversation_is_resumed_with_its_last_messages(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
    resumed = chat.saved[0]
    async with running(tmp_path, resumed=resumed) as chat:
        assert source(chat.replies[0]) == "one"
        await chat.ask("exact two")
        assert len(chat.saved) == 1
        assert len(chat.saved[0].messages) == 4


def conversation(folder, pair, *lines):
    """A conversation on disk, with lines that a test adds."""
    journal = Journal(folder / "conversations" / "20250101-a.jsonl", pair)
    journal.add(StoredMessage("user", "hi"))
    journal.add(StoredMessage("assistant", "ho"))
    journal.close()
    with journal.path.open("a", encoding="utf-8") as file:
        file.writelines(lines)
    return conversations.read(journal.path)


CHANGED = "So far this conversation was with some-file; from here on demo answers."


async def test_a_resumed_conversation_says_when_another_pair_answers_from_here_on(tmp_path):
    resumed = conversation(tmp_path, "some-file")
    async with running(tmp_path, resumed=resumed) as chat:
        await chat.until(lambda: chat.notices == [CHANGED])
        assert chat.saved[0].pair == "some-file"
        await chat.ask("exact so")
        assert chat.saved[0].pair == "demo"
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert chat.notices == []


async def test_an_opened_conversation_says_when_another_pair_answers_from_here_on(tmp_path):
    async with running(tmp_path) as chat:
        opened = conversation(tmp_path, "some-file")
        await chat.type(f"/load {opened.name}")
        await chat.until(lambda: chat.notices == [CHANGED])
        await chat.ask("exact so")
        assert chat.saved[0].pair == "demo"


async def test_a_resumed_conversation_says_how_many_lines_were_left_out(tmp_path):
    resumed = conversation(tmp_path, "demo", '{"type":"hologram"}\n', "torn\n")
    async with running(tmp_path, resumed=resumed) as chat:
        assert chat.notices == ["20250101-a.jsonl is damaged: 2 lines left out."]
        assert messages(chat) == ["hi", "ho"]


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
