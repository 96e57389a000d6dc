"""What goes into a message from files, and out of a reply into the clipboard."""

import sys

import pytest
from driving import asked
from localspec.tui.state import clipboard, mentions
from localspec.tui.widgets.prompt import Completion

from localspec.errors import BadSetting


@pytest.fixture
def files(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("a = 1\n")
    (folder / "two words.md").write_text("# two\n")
    (folder / "archive.zip").write_bytes(b"PK\3\4\0")
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("text", ["see @src/a.py", "what is @src/a.py?", "(no) @src/a.py, or"])
def test_a_mentioned_file_goes_along(files, text):
    assert mentions.with_mentioned(text).content == f"{text}\n\na.py:\n\n```py\na = 1\n```"


NO_FILES = ("mail me@src/a.py", "@nobody", "@src", "@~nobody/x", "a @ b", '@"', "@app.route", "@a/b")


@pytest.mark.parametrize("text", [*NO_FILES, "@" + "x" * 5000])
def test_what_is_no_file_is_only_text(files, text):
    assert mentions.with_mentioned(text).content == text


@pytest.mark.parametrize("text", ["see @nofile.txt", 'see @"no such.md", please', "@src/b.py?"])
def test_a_file_that_is_missing_stops_the_message(files, text):
    with pytest.raises(BadSetting, match=r"there is no file (nofile\.txt|no such\.md|src/b\.py)"):
        mentions.with_mentioned(text)


def test_files_are_offered_by_the_beginning_of_their_path(files):
    assert mentions.completions("") == ["@src/", "@archive.zip", '@"two words.md"']
    assert mentions.completions("src/") == mentions.completions("src/a") == ["@src/a.py"]
    assert mentions.completions('"two w') == ['@"two words.md"']
    assert mentions.completions("nowhere/") == mentions.completions("~nobody/") == []


async def test_a_mention_is_completed_and_sent(files, chat):
    await chat.pilot.press(*"exact @s")
    await chat.until(lambda: chat.screen.query_one(Completion).has_class("-open"))
    await chat.pilot.press("tab")
    await chat.until(lambda: chat.screen.prompt.text == "exact @src/")
    await chat.until(lambda: chat.screen.query_one(Completion).chosen == "@src/a.py")
    await chat.pilot.press("enter")
    await chat.until(lambda: chat.screen.prompt.text == "exact @src/a.py ")
    await chat.pilot.press("enter")
    await chat.until(lambda: asked(chat))
    assert "a = 1" in asked(chat)[0].messages[0].content
    assert chat.state.prompt_history.entries == ["exact @src/a.py"]


async def test_a_file_that_cannot_go_along_is_reported_and_the_message_stays(files, chat):
    await chat.type("what is @archive.zip")
    await chat.until(lambda: chat.remarks)
    assert "is not a text file" in chat.remarks[0]
    assert chat.screen.prompt.text == "what is @archive.zip"
    assert not asked(chat)


async def test_a_word_behind_an_at_that_names_no_file_is_asked_about_once(chat):
    await chat.type("exact @nofile")
    await chat.until(lambda: chat.remarks == ["there is no file nofile; press Enter to send it as text."])
    assert chat.screen.prompt.text == "exact @nofile"
    await chat.pilot.press("enter")
    await chat.until(lambda: asked(chat))
    await chat.ask("exact a decorator:\n@cache\ndef x(): ...")
    assert len(chat.remarks) == 1


async def test_the_system_gets_a_copy_too(monkeypatch, chat):
    taken = []
    monkeypatch.setattr(clipboard, "copy", lambda text: not taken.append(text))
    await chat.ask("why?")
    await chat.type("/copy code")
    await chat.until(lambda: taken)
    assert taken[0].startswith("def accept")
    await chat.type("/copy code 2")
    await chat.until(lambda: len(chat.remarks) == 2)
    assert chat.remarks[1] == "/copy code takes a whole number from 1 to 1."
    await chat.type("/copy block")
    await chat.until(lambda: len(chat.remarks) == 3)
    assert chat.remarks[2] == "This cannot be copied: use /copy, /copy code or /copy code N, or select text."


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script")
@pytest.mark.parametrize(("code", "taken"), [(0, True), (1, False)])
def test_a_program_of_the_system_takes_the_text(tmp_path, monkeypatch, code, taken):
    program = tmp_path / "wl-copy"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/taken\nexit {code}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("WAYLAND_DISPLAY", "w")
    assert clipboard.copy("größer") is taken
    assert (tmp_path / "taken").read_text() == "größer"


def test_without_a_desktop_there_is_no_program(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("os.environ", {"PATH": "/bin:/usr/bin"})
    assert clipboard.command() is None
