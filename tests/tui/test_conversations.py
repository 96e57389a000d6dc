"""The conversation files: what was written is there, whatever happened to the last line."""

import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec import conversations
from localspec.conversations import BrokenConversation, ConversationInUse, Journal, Message, Numbers

QUESTION = Message("user", "why is\nthe sky blue?")
ANSWER = Message("assistant", "scattering", "hm", 3, "stop", Numbers(9, 0.5, 0.7, 2.4, 12, 1.8))
HEAD = b'{"type":"conversation","version":1,"created":1.0,"pair":"demo","system":""}\n'
NUMBERS = (
    b'{"type":"message","role":"assistant","numbers":{"tokens":9,"seconds":0.5,"acceptance_rate":0.7,'
    b'"mean_accepted_length":2.4,"drafted":12,"speedup":null}}\n'
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), TEXT, TEXT, st.integers(0, 99)),
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
    continued.add(Message("user", "and now?"))
    assert conversations.read(log.path).messages[-1] == Message("user", "and now?")


def test_a_change_of_pair_or_system_prompt_is_kept(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.pair, log.system = "qwen3-8b+0.6b", ""
    log.add(ANSWER)
    conversation = conversations.read(log.path)
    assert (conversation.pair, conversation.system) == ("qwen3-8b+0.6b", "")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json\n",
        b'{"type":"message"}\n',
        b'{"type":"conversation","version":99}\n',
        b"\xff\xfe\x00",
        b"[1]\n",
        b"[" * 100_000,
        HEAD + b'{"type":"message","role":"user","content":5}\n',
        HEAD + b'{"type":"message","role":"user","content":["a"]}\n',
        HEAD + b'{"type":"message","role":null,"content":"a"}\n',
        HEAD + b'{"type":"message","role":"assistant","reasoning_tokens":"3"}\n',
        HEAD + b'{"type":"message","role":"assistant","numbers":[1]}\n',
        HEAD + NUMBERS.replace(b"0.5", b'"fast"'),
        HEAD + NUMBERS.replace(b"0.5", b"null"),
        HEAD + b'{"type":"keep","count":Infinity}\n',
        HEAD.replace(b"1.0", b"-Infinity"),
    ],
    ids=lambda content: repr(content[:12] + content[-30:]),
)
def test_a_broken_file_is_named_skipped_and_left_alone(tmp_path, content):
    log = journal(tmp_path)
    log.add(QUESTION)
    broken = log.path.parent / "broken.jsonl"
    broken.write_bytes(content)
    found = conversations.listing(log.path.parent)
    assert [conversation.path for conversation in found.conversations] == [log.path]
    assert [path for path, _reason in found.broken] == [broken]
    assert broken.read_bytes() == content


def test_the_lines_that_are_broken_above_can_be_read_when_they_are_not(tmp_path):
    path = tmp_path / "whole.jsonl"
    path.write_bytes(HEAD + NUMBERS)
    assert conversations.read(path).messages[0].numbers == Numbers(9, 0.5, 0.7, 2.4, 12)


def test_a_record_of_an_unknown_type_breaks_the_file_and_not_the_listing(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    with log.path.open("a") as file:
        file.write('{"type":"hologram"}\n')
    with pytest.raises(BrokenConversation, match="hologram"):
        conversations.read(log.path)


def test_find_takes_the_beginning_of_a_name_and_the_newest_without_one(tmp_path):
    folder = tmp_path / "c"
    older, newer = Journal(folder / "20250101-a.jsonl"), Journal(folder / "20250102-b.jsonl")
    for log in (older, newer):
        log.add(Message("user", log.path.stem))
    assert conversations.find(folder, "20250101").title == "20250101-a"
    assert conversations.find(folder, "").title == "20250102-b"
    with pytest.raises(BrokenConversation):
        conversations.find(folder, "1999")


def test_a_conversation_becomes_markdown(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.add(ANSWER)
    text = conversations.to_markdown(conversations.read(log.path))
    assert text.startswith("# why is the sky blue?\n")
    assert "## You\n\nwhy is\nthe sky blue?" in text
    assert "<summary>Reasoning</summary>" in text


OPEN = """
import sys
from pathlib import Path
from localspec import conversations
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
            conversations.delete(conversations.read(log.path))
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
    log.add(Message("user", "a \ud83d\ude42 and half \ud83d"))
    conversation = conversations.read(log.path)
    assert (conversation.system, conversation.title) == ("caf\ufffd", "a 🙂 and half \ufffd")
