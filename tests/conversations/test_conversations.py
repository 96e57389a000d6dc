"""Conversations on disk: what was written is there for all processes, whatever happened to the file."""

import asyncio
import io
import json
import os
import random
import re
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localspec.tui.state.conversation import OpenConversation, to_markdown
from rich.cells import cell_len

from localspec.cli import main
from localspec.conversations import conversations, database
from localspec.conversations.conversations import Conversation, ConversationInUse, StoredMessage
from localspec.conversations.database import FILE, StoreFailed
from localspec.errors import BadSetting
from localspec.events import Stats
from localspec.options import data_dir

pytestmark = pytest.mark.usefixtures("home")

QUESTION = StoredMessage("user", "why is\nthe sky blue?")
ANSWER = StoredMessage(
    "assistant", "scattering", "hm", 3, "stop", Stats(3, emitted=9, drafted_by_position=(1, 2))
)
AGAIN = ANSWER.replaced_by(replace(ANSWER, content="blue light")).replaced_by(
    StoredMessage("assistant", "air")
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
REPLIES = st.builds(StoredMessage, st.sampled_from(["user", "assistant"]), TEXT, TEXT, st.integers(0, 99))


def stored(folder, *messages, **about):
    about = {"messages": messages or (QUESTION, ANSWER)} | about
    talk = replace(Conversation.new("demo", "be brief"), **about)
    conversations.save(folder, talk)
    return talk


def names(folder, text=""):
    return [row.name for row in conversations.listing(folder, text)]


@settings(max_examples=25, deadline=None)
@given(messages=st.lists(REPLIES, min_size=1, max_size=5), title=TEXT)
def test_what_was_written_is_read_back(tmp_path_factory, messages, title):
    folder = tmp_path_factory.mktemp("c")
    talk = stored(folder, *messages, given_title=title, files=("a.gguf",))
    assert conversations.read(folder, talk.name) == talk
    assert conversations.listing(folder)[0].title == talk.title


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_reply_keeps_its_versions_and_the_one_that_was_chosen(tmp_path, version):
    reply = AGAIN.in_version(version)
    talk = stored(tmp_path, QUESTION, reply)
    assert conversations.read(tmp_path, talk.name).messages == (QUESTION, reply)
    assert (reply.content, len(reply.versions)) == (("scattering", "blue light", "air")[version], 3)


def test_an_unused_chat_leaves_no_file_and_one_without_messages_no_row(tmp_path):
    assert conversations.listing(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    talk = stored(tmp_path)
    conversations.save(tmp_path, replace(talk, messages=()))
    assert names(tmp_path) == []
    with pytest.raises(BadSetting, match="no conversation to resume"):
        conversations.find(tmp_path, "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permission bits")
def test_the_database_and_what_lies_beside_it_belong_to_their_owner_only(tmp_path):
    old = os.umask(0)
    try:
        folder = tmp_path / "new"
        stored(folder)
        with sqlite3.connect(folder / FILE) as other:  # an open one keeps the log
            other.execute("SELECT * FROM prompts").fetchall()
            stored(folder)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        other.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {f"{FILE}-wal", f"{FILE}-shm"} < set(modes)
    assert set(modes.values()) == {0o600}


class NoLog(sqlite3.Connection):
    """A connection on a file system that refuses a write-ahead log."""

    def execute(self, statement, *values):
        return super().execute(re.sub("= WAL", "= DELETE", statement), *values)


def test_a_file_system_without_write_ahead_logs_is_a_notice_and_conversations_are_stored(
    tmp_path, monkeypatch, caplog
):
    connect = sqlite3.connect
    monkeypatch.setattr(database.sqlite3, "connect", lambda *a, **k: connect(*a, factory=NoLog, **k))
    for _ in range(2):
        stored(tmp_path)
    assert len(names(tmp_path)) == 2
    assert [record.message for record in caplog.records] == [
        f"saving a conversation takes longer: the file system of {FILE} allows no SQLite log"
    ]
    assert b"scattering" in (tmp_path / FILE).read_bytes()


FOUND = {
    "abc": ("",),
    "a": ("STRASSE", "straße über", "ÜBER", "other"),
    "b": ("100% off", "_"),
    "bc": ("demo",),
    "c": ("a title", "漢字"),
    "": ("scattering nowhere", "outcome"),
}


@pytest.mark.parametrize(("text", "found"), [(text, found) for found in FOUND for text in FOUND[found]])
def test_the_list_holds_those_with_every_word_in_messages_title_or_pair(tmp_path, text, found):
    stored(tmp_path, StoredMessage("user", "Über die Straße"), name="a", pair="other", talked=3.0)
    stored(tmp_path, StoredMessage("user", "100% _off_\\"), name="b", talked=2.0)
    third = (QUESTION, ANSWER, StoredMessage("user", "漢字"))
    stored(tmp_path, *third, name="c", given_title="A Title", talked=1.0)
    assert "".join(names(tmp_path, text)) == found


def test_find_takes_the_beginning_of_a_name_and_without_one_what_was_last_talked_in(tmp_path):
    for name, talked in (("20250101-a", 9.0), ("20250102-b", 5.0)):
        stored(tmp_path, name=name, talked=talked)
    for asked, found in (("", "20250101-a"), ("2025", "20250101-a"), ("20250102", "20250102-b")):
        assert conversations.find(tmp_path, asked) == found
    assert conversations.find(tmp_path, "20250102", only=True) == "20250102-b"
    for asked in ("1999", ""):
        with pytest.raises(BadSetting, match=r"(no|2) conversations") as refused:
            conversations.find(tmp_path, asked, only=True)
        assert "20250101-a (why is the sky blue?)" in refused.value.hint


def test_a_conversation_of_a_wrong_clock_is_not_the_last_one_for_ever(tmp_path):
    stored(tmp_path, name="ahead", talked=time.time() + 25 * 365 * 86_400)
    stored(tmp_path, name="usual")
    rows = [(row.name, bool(row.talked)) for row in conversations.listing(tmp_path)]
    assert rows == [("usual", True), ("ahead", False)]


def test_text_that_is_no_unicode_is_repaired_and_loses_no_conversation(tmp_path):
    talk = stored(tmp_path, StoredMessage("user", "a \ud83d\ude42 and half \ud83d"), system="caf\udce9")
    found = conversations.read(tmp_path, talk.name)
    assert (found.system, found.title) == ("caf\ufffd", "a 🙂 and half \ufffd")
    conversations.add_prompt(tmp_path, "half \ud83d", "")
    assert conversations.prompts(tmp_path) == ["half \ufffd"]


def test_a_conversation_becomes_markdown_with_the_pairs_that_wrote_its_replies(tmp_path):
    replies = (replace(ANSWER, pair="first"), replace(ANSWER, pair="second"))
    talk = stored(tmp_path, QUESTION, replies[0], QUESTION, replies[1])
    lock, found = conversations.resume(tmp_path, talk.name)
    opened = OpenConversation.resumed(tmp_path, lock, found, stored=True)
    opened.about = replace(opened.about, pair="third")
    asyncio.run(opened.add(QUESTION))
    asyncio.run(opened.add(ANSWER))
    opened.close()
    for conversation in (opened.saved, conversations.read(tmp_path, talk.name)):
        text = to_markdown(conversation)
        assert text.startswith("# why is the sky blue?\n\n*first, second, third · exported ")
        assert "## You\n\nwhy is\nthe sky blue?" in text
        assert "<summary>Reasoning</summary>" in text


OPEN = """
import sys
from pathlib import Path
from localspec.conversations import conversations
held = conversations.resume(Path(sys.argv[1]), sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_a_conversation_is_open_in_one_process_only(tmp_path):
    talk = stored(tmp_path)
    command = [sys.executable, "-c", OPEN, str(tmp_path), talk.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        for attempt in (conversations.resume, conversations.delete):
            with pytest.raises(ConversationInUse, match=f"{talk.name} is open in another terminal"):
                attempt(tmp_path, talk.name)
        other.kill()
    lock, found = conversations.resume(tmp_path, talk.name)
    assert found == talk
    lock.release()
    for name in ("missing", talk.name):
        with suppress(BadSetting):
            conversations.resume(tmp_path, name)[0].release()
    assert not list(tmp_path.glob("conversations/*"))


async def test_a_new_conversation_is_held_from_its_first_message_on(tmp_path):
    held = OpenConversation(tmp_path, Conversation.new("demo"))
    await held.ask(StoredMessage("user", "why?"))
    with pytest.raises(ConversationInUse):
        conversations.resume(tmp_path, held.about.name)
    for _ in range(2):
        held.close()
    conversations.resume(tmp_path, held.about.name)[0].release()


@contextmanager
def full_disk(path):
    """The file and its log cannot grow, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LATER = {
    "a question": lambda held: held.add(StoredMessage("user", "q3")),
    "another version": lambda held: held.add(StoredMessage("assistant", "a2 again", outcome="stop")),
    "an earlier version": lambda held: held.choose(1, 0),
    "fewer messages": lambda held: held.take_back(),
    "a title": lambda held: held.rename("A title"),
    "leaving": lambda held: held.save(),
}


@pytest.mark.parametrize("later", LATER)
async def test_what_a_full_disk_refused_is_saved_with_whatever_is_saved_next(tmp_path, later):
    held = OpenConversation(tmp_path, Conversation.new("demo"))
    for message in (QUESTION, ANSWER, replace(ANSWER, content="blue light"), StoredMessage("user", "q2")):
        await held.add(message)
    with full_disk(tmp_path / FILE):
        for message in (StoredMessage("assistant", "a2", outcome="stop"), StoredMessage("user", "lost")):
            with pytest.raises(OSError, match=FILE):
                await held.add(message)
            assert held.is_behind
    assert len(conversations.read(tmp_path, held.about.name).messages) == 3
    await LATER[later](held)
    assert not held.is_behind
    assert conversations.read(tmp_path, held.about.name) == held.saved
    held.close()


def broken(folder, way):
    """Damage the file of eighty conversations; how many of them must be readable."""
    for n in range(80):
        question = StoredMessage("user", f"question {n} " + "word " * 900)
        stored(folder, question, name=f"n{n:02}", talked=float(n))
    path = folder / FILE
    content = bytearray(path.read_bytes())
    if way == "zeros":
        content[len(content) // 2 : len(content) // 2 + 8192] = bytes(8192)
    elif way == "noise":
        content[: len(content) // 2] = random.Random(1).randbytes(len(content) // 2)
    elif way == "cut":
        del content[len(content) * 3 // 4 :]
    path.write_bytes(b"no database at all\n" * 99 if way == "text" else bytes(content))
    return {"zeros": 60, "cut": 40}.get(way, 0)


@pytest.mark.parametrize("way", ["zeros", "noise", "cut", "text"])
def test_a_damaged_file_is_set_aside_and_what_can_be_read_of_it_goes_on(tmp_path, way, caplog):
    least = broken(tmp_path, way)
    stored(tmp_path, name="new")
    found = [row.name for row in conversations.listing(tmp_path, "why sky")]
    for row in conversations.listing(tmp_path):
        with suppress(StoreFailed):  # its own text may be what was damaged
            conversations.read(tmp_path, row.name)
    assert found == ["new"]
    assert len(names(tmp_path)) > least
    assert [path.name for path in tmp_path.glob("*.damaged")] == [f"{FILE}.damaged"]
    assert "was damaged" in caplog.records[0].message
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    conversations.delete(tmp_path, "new")
    assert not [*tmp_path.glob("*.damaged")], "it may hold the conversation"


def test_a_row_that_cannot_be_read_costs_only_itself(tmp_path):
    stored(tmp_path, name="good")
    stored(tmp_path, name="bad")
    database.perform(tmp_path, ("UPDATE conversations SET body = '{' WHERE name = 'bad'",))
    with pytest.raises(StoreFailed, match="damaged") as refused:
        conversations.read(tmp_path, "bad")
    assert "chats rm bad" in refused.value.hint
    conversations.delete(tmp_path, "bad")
    assert names(tmp_path) == ["good"]


def test_a_file_of_a_newer_version_is_left_alone(tmp_path):
    talk = stored(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    db.close()
    for attempt in (lambda: conversations.listing(tmp_path), lambda: conversations.save(tmp_path, talk)):
        with pytest.raises(StoreFailed, match="newer localspec"):
            attempt()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9000), st.booleans()), min_size=1, max_size=25))
def test_no_byte_of_what_was_withdrawn_or_deleted_is_left(tmp_path_factory, changes):
    folder, count, lives = tmp_path_factory.mktemp("c"), 0, {}
    for which, length, deletes in changes:
        name = f"talk{which}"
        if deletes and name in lives:
            conversations.delete(folder, lives.pop(name).name)
        else:
            count += 1
            text = f"<{count}>" * (1 + length // 8)
            lives[name] = stored(folder, StoredMessage("user", text), name=name)
            conversations.add_prompt(folder, text, name)
        there = {match for path in folder.glob("*.db*") for match in re.findall(rb"<\d+>", path.read_bytes())}
        texts = [*(talk.messages[0].content for talk in lives.values()), *conversations.prompts(folder)]
        assert there == {match.encode() for text in texts for match in re.findall(r"<\d+>", text)}


def test_prompts_are_kept_up_to_a_number_and_go_with_their_conversation(tmp_path, monkeypatch):
    monkeypatch.setattr(conversations, "MOST_PROMPTS", 5)
    talk = stored(tmp_path)
    for n in range(9):
        conversations.add_prompt(tmp_path, f"p{n}", talk.name if n == 7 else "")
    conversations.add_prompt(tmp_path, QUESTION.content, "another one")
    assert conversations.prompts(tmp_path) == ["p5", "p6", "p7", "p8", QUESTION.content]
    conversations.delete(tmp_path, talk.name)
    assert conversations.prompts(tmp_path) == ["p5", "p6", "p8"]


@pytest.fixture
def talks(home):
    """Two conversations on disk."""
    messages = StoredMessage("user", "why is\nthe sky \x1b]52 blue?"), StoredMessage("assistant", "so", "hm")
    for name, title in (("20250101-a", ""), ("20250102-b", "A title")):
        talk = conversations.Conversation(name, "demo", "be brief", messages, title, talked=1e9)
        conversations.save(data_dir(), talk)


def test_conversations_are_listed_searched_and_shown(talks, capsys):
    assert main(["chats"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["ID", "20250102-b", "20250101-a"]
    assert listed[2].endswith("why is the sky \ufffd]52 blue?")
    assert main(["chats", "--like", "TITLE so", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["conversations"]
    assert (found["name"], found["title"], found["count"]) == ("20250102-b", "A title", 2)
    assert main(["chats", "--like", "nothing"]) == 0
    assert capsys.readouterr().out == "no conversation has these words\n"
    assert main(["chats", "show", "20250102"]) == 0
    assert capsys.readouterr().out.startswith("# A title\n")
    assert main(["chats", "show", "20250101", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"][1]["reasoning"] == "hm"
    assert main(["chats", "show", "2025"]) == 2
    assert "2 conversations have an ID that begins with '2025'" in capsys.readouterr().err


def test_on_a_terminal_each_conversation_has_one_row_whose_title_is_cut(talks, capsys, monkeypatch):
    title = "日本 " + "a long title " * 20
    conversations.save(
        data_dir(),
        replace(conversations.read(data_dir(), "20250102-b"), name="20250103-c", given_title=title),
    )
    assert main(["chats"]) == 0
    assert title[: conversations.TITLE_LENGTH - 1] in capsys.readouterr().out
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["chats"]) == 0
    (row,) = [row for row in screen.getvalue().splitlines() if "日本" in row]
    assert cell_len(row) == 59
    assert row.endswith("…")


def test_a_conversation_is_removed_by_its_beginning_and_an_empty_list_says_so(talks, capsys):
    for name in ("20250101", "20250102-b"):
        assert main(["chats", "rm", name]) == 0
        assert capsys.readouterr().out.startswith(f"removed the conversation {name}")
    assert main(["chats"]) == 0
    assert capsys.readouterr().out == "no conversation is stored\n"
    assert main(["chats", "rm", "20250101", "--json"]) == 2
