"""The conversation files: what was written is there, whatever happened to the last line."""

import asyncio
import os
import stat
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localspec.tui.state.conversation import OpenConversation, to_markdown

from localspec.chat import conversations
from localspec.chat.conversations import (
    BrokenConversation,
    ConversationInUse,
    Journal,
    Numbers,
    StoredMessage,
)
from localspec.errors import BadSetting

QUESTION = StoredMessage("user", "why is\nthe sky blue?")
ANSWER = StoredMessage("assistant", "scattering", "hm", 3, "stop", Numbers(9, 0.5, 0.7, 2.4, 12, 1.8))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MESSAGES = st.lists(
    st.builds(StoredMessage, st.sampled_from(["user", "assistant"]), TEXT, TEXT, st.integers(0, 99)),
    max_size=5,
)


def journal(tmp_path):
    return Journal.new(tmp_path / "conversations", "demo", "be brief")


def test_what_was_added_is_read_back(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.add(ANSWER)
    conversation = conversations.read(log.path)
    assert conversation.messages == (QUESTION, ANSWER)
    assert (conversation.pair, conversation.system) == ("demo", "be brief")
    assert conversation.title == "why is the sky blue?"


def test_an_unused_chat_leaves_no_file(tmp_path):
    journal(tmp_path)
    assert not (tmp_path / "conversations").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permission bits")
def test_files_and_folder_belong_to_their_owner_only(tmp_path):
    old = os.umask(0)
    try:
        log = journal(tmp_path)
        log.add(QUESTION)
    finally:
        os.umask(old)
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700


@settings(max_examples=25, deadline=None)
@given(before=MESSAGES, keep=st.integers(0, 9), after=MESSAGES)
def test_keep_drops_the_tail_and_nothing_else(tmp_path_factory, before, keep, after):
    log = journal(tmp_path_factory.mktemp("c"))
    for message in before:
        log.add(message)
    log.keep(keep)
    for message in after:
        log.add(message)
    assert list(conversations.read(log.path).messages) == before[:keep] + after


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 400))
def test_a_file_cut_anywhere_loses_at_most_its_last_line_and_can_be_continued(tmp_path_factory, cut):
    log = journal(tmp_path_factory.mktemp("c"))
    log.add(QUESTION)
    log.add(ANSWER)
    whole = log.path.read_bytes()
    first, second, _third = whole.splitlines(keepends=True)
    kept = whole[: max(len(first) + len(second), len(whole) - cut)]
    log.path.write_bytes(kept)
    assert QUESTION in conversations.read(log.path).messages
    log.close()
    continued, _ = conversations.resume(log.path)
    continued.add(StoredMessage("user", "and now?"))
    assert conversations.read(log.path).messages[-1] == StoredMessage("user", "and now?")


def test_a_change_of_pair_or_system_prompt_is_kept(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.pair, log.system = "qwen3-8b+0.6b", ""
    log.add(ANSWER)
    conversation = conversations.read(log.path)
    assert (conversation.pair, conversation.system) == ("qwen3-8b+0.6b", "")


def test_a_reply_keeps_its_versions_and_the_one_that_was_chosen(tmp_path):
    log = journal(tmp_path)
    second, third = replace(ANSWER, content="blue light"), replace(ANSWER, content="air")
    for message in (QUESTION, ANSWER):
        log.add(message)
    log.add_version(second, back=1)
    log.add(QUESTION)
    log.add_version(third, back=2)
    log.choose(0, back=2)
    shown = conversations.read(log.path).messages
    assert [message.content for message in shown] == [QUESTION.content, "scattering", QUESTION.content]
    assert shown[1].versions == (ANSWER, second, third)
    assert (shown[1].version, shown[1].numbers) == (0, ANSWER.numbers)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_reply_that_is_written_again_is_written_with_its_versions(tmp_path, version):
    log = journal(tmp_path)
    reply = (
        ANSWER.replaced_by(StoredMessage("assistant", "b"))
        .replaced_by(StoredMessage("assistant", "c"))
        .in_version(version)
    )
    log.add(QUESTION)
    log.add(reply)
    assert conversations.read(log.path).messages == (QUESTION, reply)


@pytest.fixture
def clock(monkeypatch):
    """Sets the time of the conversations."""
    now = [1_000_000.0]
    monkeypatch.setattr(conversations.time, "time", lambda: now[0])
    return lambda later: now.__setitem__(0, now[0] + later)


def test_find_takes_the_beginning_of_a_name_and_without_one_what_was_last_talked_in(tmp_path, clock):
    folder = tmp_path / "c"
    older, newer = Journal(folder / "20250101-a.jsonl"), Journal(folder / "20250102-b.jsonl")
    for log in (older, newer):
        clock(60)
        log.add(StoredMessage("user", log.path.stem))
    assert conversations.find(folder, "").title == "20250102-b"
    clock(60)
    older.add(StoredMessage("assistant", "so"))
    assert conversations.find(folder, "").title == "20250101-a"
    assert conversations.find(folder, "2025").title == "20250101-a"
    assert conversations.find(folder, "20250102").title == "20250102-b"
    assert [found.title for found in conversations.listing(folder).conversations] == [
        "20250101-a",
        "20250102-b",
    ]
    with pytest.raises(BadSetting, match="1999"):
        conversations.find(folder, "1999")


def test_find_passes_over_a_broken_file_unless_there_is_nothing_else(tmp_path):
    broken = tmp_path / "20250103-c.jsonl"
    broken.write_text("{}")
    with pytest.raises(BrokenConversation, match="20250103-c"):
        conversations.find(tmp_path, "")
    Journal(tmp_path / "20250101-a.jsonl").add(QUESTION)
    assert conversations.find(tmp_path, "").name == "20250101-a"
    with pytest.raises(BrokenConversation, match="20250103-c"):
        conversations.find(tmp_path, "20250103")


def test_resuming_passes_over_conversations_without_messages(tmp_path):
    kept, empty = Journal(tmp_path / "20250101-a.jsonl"), Journal(tmp_path / "20250102-b.jsonl")
    kept.add(QUESTION)
    empty.add(StoredMessage("user", "too long"))
    empty.keep(0)
    assert conversations.find(tmp_path, "").name == "20250101-a"
    assert conversations.find(tmp_path, "20250102").messages == ()


def test_a_deleted_conversation_has_all_its_questions_forgotten_first(tmp_path):
    log = journal(tmp_path)
    for text in ("first", "changed", "kept"):
        log.add(StoredMessage("user", text))
    log.keep(1)
    log.add(StoredMessage("assistant", "not typed"))
    log.close()
    forgotten = []

    def forget(texts):
        assert log.path.exists()
        forgotten.extend(texts)

    conversations.delete(conversations.read(log.path), forget)
    assert sorted(forgotten) == ["changed", "first", "kept"]
    assert not log.path.exists()


def test_a_conversation_whose_prompts_cannot_be_forgotten_stays(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.close()

    def full(_texts):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        conversations.delete(conversations.read(log.path), full)
    assert conversations.read(log.path).messages == (QUESTION,)


def test_a_conversation_becomes_markdown(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.add(ANSWER)
    text = to_markdown(conversations.read(log.path))
    assert text.startswith("# why is the sky blue?\n")
    assert "## You\n\nwhy is\nthe sky blue?" in text
    assert "<summary>Reasoning</summary>" in text


def test_an_export_names_the_pairs_that_wrote_the_replies(tmp_path):
    """Not the one that is loaded now, also from a file that only says when the pair changed."""
    log = journal(tmp_path)
    log.pair = "first"
    log.add(QUESTION, ANSWER)
    log.pair = "second"
    log.add(QUESTION, replace(ANSWER, content="two"))
    log.close()
    held, found = conversations.resume(log.path)
    held.pair = "third"
    opened = OpenConversation.resumed(held, found, stored=True)
    assert "\n*first, second · exported " in to_markdown(opened.saved)
    asyncio.run(opened.add(QUESTION))
    asyncio.run(opened.add(ANSWER))
    held.close()
    for conversation in (opened.saved, conversations.read(log.path)):
        assert "\n*first, second, third · exported " in to_markdown(conversation)


OPEN = """
import sys
from pathlib import Path
from localspec.chat import conversations
journal, _ = conversations.resume(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_conversation_is_open_in_one_process_only(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.close()
    command = [sys.executable, "-c", OPEN, str(log.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ConversationInUse, match=f"{log.path.stem} is open in another terminal"):
            conversations.resume(log.path)
        with pytest.raises(ConversationInUse):
            conversations.delete(conversations.read(log.path), set)
        other.kill()
    again, conversation = conversations.resume(log.path)
    assert conversation.messages == (QUESTION,)
    again.close()
    assert [path.name for path in log.path.parent.iterdir()] == [log.path.name]


def test_a_new_conversation_is_held_from_its_first_line_on(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    with pytest.raises(ConversationInUse):
        conversations.resume(log.path)
    log.close()
    log.close()
    conversations.resume(log.path)[0].close()


def test_a_broken_conversation_is_not_held(tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text("not json")
    for _ in range(2):
        with pytest.raises(BrokenConversation):
            conversations.resume(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_removed_begins_anew_with_its_head(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.path.unlink()
    log.add(ANSWER)
    conversation = conversations.read(log.path)
    assert (conversation.pair, conversation.messages) == ("demo", (ANSWER,))


@pytest.mark.parametrize("written", [0, 1, 5])
def test_a_full_disk_leaves_no_piece_of_a_line(tmp_path, monkeypatch, written):
    log = journal(tmp_path)
    write = os.write

    def full(descriptor, data):
        if written and not os.fstat(descriptor).st_size:
            return write(descriptor, data[:written])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.add(QUESTION)
    log.add(ANSWER)
    assert conversations.read(log.path).messages == (ANSWER,)


def test_text_that_is_no_unicode_is_repaired_and_loses_no_conversation(tmp_path):
    log = Journal.new(tmp_path / "conversations", "demo", "caf\udce9")
    log.add(StoredMessage("user", "a \ud83d\ude42 and half \ud83d"))
    conversation = conversations.read(log.path)
    assert (conversation.system, conversation.title) == ("caf\ufffd", "a 🙂 and half \ufffd")


@contextmanager
def full_disk(path):
    """The file can take half a line more, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LATER = {
    "a question": lambda held: held.add(StoredMessage("user", "q3")),
    "another version": lambda held: held.add(StoredMessage("assistant", "a2 again", outcome="stop")),
    "an earlier version": lambda held: held.choose(1, 0),
    "fewer messages": lambda held: held.keep(2),
    "a title": lambda held: held.rename("A title"),
    "leaving": lambda held: held.catch_up(),
}


@pytest.mark.parametrize("later", LATER)
async def test_what_a_full_disk_refused_is_saved_with_whatever_is_saved_next(tmp_path, later):
    held = OpenConversation(journal(tmp_path))
    for message in (QUESTION, ANSWER, replace(ANSWER, content="blue light"), StoredMessage("user", "q2")):
        await held.add(message)
    with full_disk(held.journal.path):
        for message in (StoredMessage("assistant", "a2", outcome="stop"), StoredMessage("user", "lost")):
            with pytest.raises(OSError, match="large"):
                await held.add(message)
        with pytest.raises(OSError, match="large"):
            await held.keep(4)
    assert len(conversations.read(held.journal.path).messages) == 3
    await LATER[later](held)
    found = conversations.read(held.journal.path)
    assert list(found.messages) == held.messages
    assert (found.given_title, found.lost_lines) == (held.title, 0)
    await held.add(StoredMessage("user", "and then"))
    assert list(conversations.read(held.journal.path).messages) == held.messages


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 500))
def test_a_crash_in_what_belongs_together_keeps_all_or_nothing_of_it(tmp_path_factory, cut):
    log = journal(tmp_path_factory.mktemp("c"))
    log.add(QUESTION)
    log.add(ANSWER)
    before = log.path.stat().st_size
    log.add(StoredMessage("user", "changed"), StoredMessage("assistant", "otherwise"), keep=0)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[: max(before, len(whole) - cut)])
    assert conversations.read(log.path).messages in (
        (QUESTION, ANSWER),
        (StoredMessage("user", "changed"), StoredMessage("assistant", "otherwise")),
    )


def test_what_was_changed_is_forgotten_with_the_conversation(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.add(StoredMessage("user", "changed"), ANSWER, keep=0)
    log.close()
    forgotten = []
    conversations.delete(conversations.read(log.path), forgotten.extend)
    assert sorted(forgotten) == ["changed", QUESTION.content]
