"""The conversation on the screen: resumed, long, and in parts."""

from driving import running, source
from localspec.tui.widgets import transcript
from localspec.tui.widgets.transcript import Earlier, UserMessage


async def test_a_conversation_is_resumed_with_its_last_messages(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
    resumed = chat.saved[0]
    async with running(tmp_path, resumed=resumed) as chat:
        assert source(chat.replies[0]) == "one"
        await chat.ask("exact two")
        assert len(chat.saved) == 1
        assert len(chat.saved[0].messages) == 4


async def test_an_old_conversation_is_shown_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(transcript, "MOST", 8)
    monkeypatch.setattr(transcript, "FEWEST", 4)
    async with running(tmp_path) as chat:
        for n in range(8):
            await chat.ask(f"exact {n}")
            assert len(chat.screen.transcript.children) <= 9
        assert chat.screen.query(Earlier)
        before = [str(message.content) for message in chat.screen.query(UserMessage)]
        chat.screen.transcript.scroll_home(animate=False)
        await chat.until(lambda: len(chat.screen.query(UserMessage)) > len(before))
        shown = [str(message.content) for message in chat.screen.query(UserMessage)]
        assert shown == [f"exact {n}" for n in range(8)][-len(shown) :]
