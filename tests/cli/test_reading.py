"""Commands that only print: a home that has one of everything, also where nothing can be written."""

import errno
import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.cli import main
from localspec.conversations import conversations, database
from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.gguf.facts import DraftKind
from localspec.models import local_models
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair, add_pair, users_folder
from localspec.options import config_dir, data_dir
from localspec.prompt.images import PLACE, Image
from tests.tiny_images import pictures

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime"}
read_only: list[Path] = []  # folders in which this process may write nothing


def refuse(event, arguments):
    """An audit hook: refuse to change a file below `read_only`, as a read-only file system does."""
    if read_only and (event in EVENTS or (event == "open" and (arguments[2] or 0) & WRITES)):
        for path in arguments:
            if isinstance(path, str | bytes | os.PathLike):
                place = Path(os.path.abspath(os.fsdecode(path)))
                if any(place.is_relative_to(folder) for folder in read_only):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place))


@pytest.fixture(scope="module", autouse=True)
def audited():
    sys.addaudithook(refuse)  # a hook stays for good, and does nothing while `read_only` is empty


@pytest.fixture
def full_home(home, tiny_gguf):
    """A home with a setting, pairs, an opened file, conversations, damage, and what other programs left."""
    config_dir().mkdir(parents=True)
    (config_dir() / "config.toml").write_text("temperature = 0.5\n")
    mine, opened = (Path(shutil.copy(tiny_gguf(), home / name)) for name in ("mine.gguf", "opened .gguf"))
    add_pair(Pair("mine", DraftKind.LOOKUP, ModelFile.at(mine), use="my own", listed=True))
    (users_folder() / "broken.toml").write_text("[[pair]\n")
    local_models.mark_used(str(opened))
    (local_models.models_dir() / "org" / "repo").mkdir(parents=True)
    (local_models.models_dir() / "org" / "repo" / "left.gguf.part").write_bytes(b"GGUF")
    picture = StoredMessage("user", f"what is {PLACE}?", images=(Image(pictures()["square.png"], "a.png"),))
    talk = replace(Conversation.new("mine"), messages=(picture, StoredMessage("assistant", "a square")))
    conversations.save(data_dir(), talk)
    conversations.save(
        data_dir(), replace(Conversation.new("mine"), messages=(StoredMessage("user", "odd"),))
    )
    with closing(sqlite3.connect(data_dir() / database.FILE)) as db, db:
        db.execute("UPDATE conversations SET talked = 1e300 WHERE name != ?", (talk.name,))
    (data_dir() / "chats.db.damaged").write_bytes(b"what a recovery kept")
    return home, talk.name


def state_of(folder):
    """The content of all files below a folder, by their paths."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.process
@pytest.mark.parametrize("writable", [True, False], ids=["writable", "read-only"])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("chats", "what is"),
        ("chats --json", "what is"),
        ("chats --like square", "what is"),
        ("chats show ID", "a square"),
        ("chats show ID --json", "a square"),
        ("config", "temperature"),
        ("config --json", "temperature"),
        ("doctor", "llama.cpp"),
        ("doctor --json", "broken.toml"),
        ("info mine", "mine.gguf"),
        ("info opened --json", "opened"),
        ("list", "opened"),
        ("list --json", "opened"),
        ("pairs", "mine"),
        ("pairs --json", "mine"),
        ("pairs --like own", "mine"),
        ("completion bash", "localspec"),
    ],
)
def test_a_command_that_prints_shows_a_full_home_and_changes_no_file(
    full_home, capsys, monkeypatch, line, says, writable
):
    home, talk = full_home
    before = state_of(home)
    if not writable:
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
        read_only.append(home)
    try:
        code = main(line.replace("ID", talk).split())
    finally:
        read_only.clear()
    printed = capsys.readouterr()
    assert code == (2 if line.startswith("doctor") else 0), printed.err  # `doctor` found the broken file
    assert says in printed.out
    if "--json" in line:
        json.loads(printed.out)
    assert "made a mistake" not in printed.err
    assert state_of(home) == before
