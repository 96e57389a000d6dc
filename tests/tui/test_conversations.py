"""The conversation files: what was written is there, whatever happened to the last line."""

import os
import stat
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec import conversations
from localspec.conversations import BrokenConversation, Journal, Message, Numbers

QUESTION = Message("user", "why is\nthe sky blue?")
ANSWER = Message("assistant", "scattering", "hm", 3, "stop", Numbers(9, 0.5, 0.7, 2.4, 12, 1.8))
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
    continued = Journal.resume(conversations.read(log.path))
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
    ],
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
