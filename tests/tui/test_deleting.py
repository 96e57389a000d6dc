"""A deleted conversation is nowhere in the home: every file is searched for its words, as they are and unpacked."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest
from driving import open_conversations, running, stored
from localspec.tui.dialogs import ConfirmDialog
from localspec.tui.lists import ConversationsDialog
from localspec.tui.state.chat import PromptHistory

import localspec
from localspec.caches.store import finish, packed, usage
from localspec.cli.program import reported
from localspec.conversations import conversations
from localspec.conversations.conversations import StoredMessage
from localspec.conversations.database import FILE
from localspec.files import with_files
from localspec.options import cache_dir, config_dir, data_dir
from localspec.prompt.messages import Message

WINDOW, TOKENS = 12, 6
TITLE = "Swordfish chapter one"
TYPED = "summarize my diary @diary.txt and be quick"
DIARY = " ".join(f"On day {day % 7} the hidden treasure stayed buried." for day in range(90))
WITHDRAWN = "a question that nobody was meant to read"
SECRETS = (TITLE, TYPED, DIARY, WITHDRAWN, "pondering the buried gold", "Your diary mentions nothing useful")
OTHER = " ".join(f"Weather report number {day % 7}: plain sunshine." for day in range(90))


pytestmark = pytest.mark.usefixtures("home", "cache_of_its_own", "quick_disk")


def unpacked(content):
    """The content, and what it holds if it is compressed."""
    yield content
    if not content:
        return
    for opened in (gzip.decompress, bz2.decompress, lzma.decompress, zlib.decompress):
        with suppress(OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
            yield from unpacked(opened(content))
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(content)) as parts:
        for name in parts.namelist():
            yield from unpacked(parts.read(name))


def windows(text, vocabulary):
    """All beginnings of a leak: characters in a row, and tokens in a row as caches hold them."""
    tokens = packed(vocabulary.tokenize(text, parse_special=False))
    found = {text[at : at + WINDOW].encode() for at in range(len(text) - WINDOW + 1)}
    return found | {tokens[at : at + 4 * TOKENS] for at in range(0, len(tokens) - 4 * TOKENS + 1, 4)}


def with_lock(texts, vocabulary):
    """The files below config, data and cache that hold a part of one of these texts."""
    return holding_any(set().union(*(windows(text, vocabulary) for text in texts)))


def holding_any(wanted):
    folders = {config_dir(), data_dir(), cache_dir()}
    paths = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    leaks = set()
    for path in paths:
        for content in unpacked(path.read_bytes()):
            if any(part in content for part in wanted):
                leaks.add(path.name)
    return leaks


def conversation(question, reply, reasoning="", typed="", title=""):
    """A stored conversation with its prompt in the history; returns its name."""
    folder, withdrawn = data_dir(), StoredMessage("user", WITHDRAWN if title else "hello")
    talk = stored(folder, withdrawn, given_title=title)
    stored(folder, withdrawn, StoredMessage("assistant", "no"), course_of=talk.name)
    other = StoredMessage("assistant", "another version", reasoning)
    messages = (
        StoredMessage("user", question),
        other.replaced_by(StoredMessage("assistant", reply, reasoning)),
    )
    conversations.save(folder, replace(talk, messages=messages))
    PromptHistory(folder).add(typed or question[:60], talk.name)
    return talk.name


def fill(session, tmp_path):
    """Two conversations with their caches, and all that programs that failed have left; the name of the first."""
    (tmp_path / "diary.txt").write_text(DIARY)
    question = with_files("summarize my diary", [tmp_path / "diary.txt"])
    name = conversation(question, SECRETS[5], SECRETS[4], TYPED, TITLE)
    other = conversation(OTHER, "fine")
    for kept, asked in ((name, question), (other, OTHER)):
        with session.another(stored_as=kept) as own:
            own.run([{"role": "user", "content": asked}], max_tokens=2, temperature=0)
    with session.another() as own:
        own.run("short", max_tokens=1)  # the others leave the slot
    session.pair.target.store()
    finish(300)
    cache = next(p for p in (cache_dir() / "texts").glob("*.cache") if name.encode() in p.read_bytes())
    half = cache.read_bytes()[:-1000]
    cache.with_name("0" * 32 + ".cache.partkilled").write_bytes(half)
    (data_dir() / f"{FILE}.damaged").write_bytes((data_dir() / FILE).read_bytes())
    (data_dir() / f"{FILE}.damaged-2").write_text(TYPED)  # no SQLite file any more
    reported(ValueError(DIARY[:200]), ["run", "--seed", "1", "--system", WITHDRAWN, "--", f"--{TITLE}"])
    return name


@pytest.fixture
def session(home):
    with localspec.load("demo", threads=1) as loaded:
        yield loaded
    finish(300)


def everywhere(session, name):
    """Before the deletion: all places that it has to reach hold something."""
    vocabulary = session.pair.vocabulary
    found = with_lock(SECRETS, vocabulary)
    old = {f"{FILE}.damaged", f"{FILE}.damaged-2"}
    assert {FILE, "0" * 32 + ".cache.partkilled", *old} < found
    assert len(found) == 5  # and the cache
    assert len(with_lock([OTHER], vocabulary)) == 3
    assert list((data_dir() / "reports").iterdir())
    assert usage(cache_dir() / "texts")[0] == 3


def gone(session):
    vocabulary = session.pair.vocabulary
    assert with_lock(SECRETS, vocabulary) == set()
    assert len(with_lock([OTHER], vocabulary)) == 2


async def test_the_chat_deletes_every_word(session, tmp_path):
    name = fill(session, tmp_path)
    everywhere(session, name)
    async with running(data_dir()) as chat:
        await open_conversations(chat, rows=4)
        await chat.pilot.press(*"Swordfish", "ctrl+d")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
        assert "with 1 earlier course" in chat.drawn
        await chat.pilot.press("y")
        await chat.until(lambda: isinstance(chat.app.screen, ConversationsDialog))
        await chat.until(lambda: len(chat.saved) == 2)
        assert TYPED not in chat.state.prompt_history.entries
    gone(session)


def test_what_an_engine_still_holds_is_not_written_after_the_deletion(session, tmp_path):
    name = conversation(DIARY, "reply", title=TITLE)
    with session.another(stored_as=name) as own:
        own.run([{"role": "user", "content": DIARY}], max_tokens=2)
    assert session.pair.slots.unsaved()
    conversations.delete(data_dir(), name)
    session.read_ahead(bool, (*own.messages, Message("user", f"{WITHDRAWN} ")))
    session.pair.slots.store()
    session.pair.target.store()
    finish(300)
    assert with_lock([DIARY, TITLE, WITHDRAWN], session.pair.vocabulary) == set()


async def test_a_changed_question_goes_with_the_conversation_and_its_earlier_course(home):
    """Unless somebody went on with that course: then it is a conversation of its own."""
    for continued in (False, True):
        async with running(data_dir()) as chat:
            for text in ("exact hidden treasure", "exact two", "exact three"):
                await chat.ask(text)
            changed = chat.state.conversation.about.name
            await chat.type("/edit 1")
            await chat.ask_instead("exact changed")
            course = next(one for one in chat.saved if one.name != changed)
            assert (course.course_of, len(course.messages)) == (changed, 6)
            await chat.type(f"/load {course.name}")
            await chat.until(lambda course=course: chat.state.conversation.about.name == course.name)
            if continued:
                await chat.ask("exact more")
            await chat.pilot.press("ctrl+n")
        conversations.delete(data_dir(), changed)
        assert holding_any({b"hidden treasure"}) == ({FILE} if continued else set())


@pytest.mark.parametrize("everything", [False, True])
def test_a_text_of_no_stored_conversation_is_written_only_where_it_was_asked_for(home, everything):
    with localspec.load("demo", threads=1, cache="all" if everything else "conversations") as session:
        session.run(DIARY, max_tokens=2)
        wanted = windows(DIARY, session.pair.vocabulary)
    finish(300)
    assert len(holding_any(wanted)) == everything
