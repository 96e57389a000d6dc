"""What people who come from ollama, llm or git try first: names of pairs, short options, help, completion, going on."""

import io
import json
import os
import subprocess
import sys

import pytest

from localspec import display
from localspec.cli import main
from localspec.cli.commands import chat
from localspec.conversations import conversations
from localspec.errors import BadSetting
from localspec.files import attached, with_files
from localspec.options import data_dir

pytestmark = pytest.mark.usefixtures("home")

QUICK = ("-n", "6", "--temperature", "0", "--threads", "1")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """terminal() makes the standard streams terminals, and TERM one that obeys sequences."""

    def begin():
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        streams = {name: Terminal() for name in ("stdin", "stdout", "stderr")}
        for name, stream in streams.items():
            monkeypatch.setattr(sys, name, stream)
        return streams

    return begin  # called in the test: pytest sets the streams anew before it


def test_without_a_command_the_chat_opens_on_a_terminal_and_the_help_elsewhere(terminal, monkeypatch):
    opened, _ = [], terminal()
    monkeypatch.setattr(chat, "_chat", lambda *_: opened.append(True) or 0)
    assert main([]) == 0
    assert opened == [True]
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert main([]) == 0
    assert opened == [True]
    assert "usage: localspec" in sys.stdout.getvalue()


@pytest.mark.process
def test_a_name_with_nothing_to_ask_opens_the_chat_with_that_pair(terminal, monkeypatch):
    opened, _ = [], terminal()
    monkeypatch.setattr(chat, "_chat", lambda arguments, *_: opened.append(arguments.name) or 0)
    assert main(["run", "demo"]) == main(["chat", "demo"]) == 0
    assert opened == ["demo", "demo"]


@pytest.mark.process
def test_a_prompt_in_quotes_needs_no_command(capsys):
    assert main(["Hello there", "-m", "demo", "-q", *QUICK]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip()
    assert printed.err == ""


@pytest.mark.parametrize("words", [["help", "run"], ["help", "pairs", "add"], ["help"], ["-V"]])
def test_help_is_a_command_too(words, capsys):
    assert main(words) == 0
    assert "localspec" in capsys.readouterr().out


@pytest.mark.process
def test_a_prompt_conversation_goes_on(capsys):
    assert main(["run", "demo", "Hello", "-q", "--store", "-s", "Be kind.", *QUICK]) == 0
    assert main(["run", "-c", "And now?", "--json", *QUICK]) == 0
    found = conversations.read(data_dir(), conversations.find(data_dir(), ""))
    assert [message.content for message in found.messages[::2]] == ["Hello", "And now?"]
    assert found.system == "Be kind."
    assert found.pair == "demo"
    assert found.messages[1].stats.emitted == 6


@pytest.mark.process
def test_a_script_keeps_no_conversation_and_no_store_adds_nothing(capsys):
    assert main(["run", "demo", "Hello", "-q", *QUICK]) == 0
    assert not (data_dir() / "chats.db").exists()
    assert main(["run", "-c", "Hello", "-q", *QUICK]) == 2
    assert "no conversation to resume" in capsys.readouterr().err
    assert main(["run", "demo", "Hello", "-q", "--store", *QUICK]) == 0
    assert main(["run", "-c", "More", "-q", "--no-store", *QUICK]) == 0
    assert conversations.listing(data_dir())[0].count == 2


@pytest.fixture
def full_disk(monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversations, "save", refuse)


@pytest.mark.process
def test_a_conversation_that_was_to_be_kept_and_is_not_is_an_error_also_in_silence(full_disk, capsys):
    assert main(["run", "demo", "Hello", "-q", "--store", *QUICK]) == 1
    out, err = capsys.readouterr()
    assert out.strip()
    assert err.splitlines()[0] == "error: the conversation is not stored: No space left on device"


@pytest.mark.process
def test_a_conversation_that_is_not_kept_by_itself_is_a_note_also_in_silence(full_disk, capsys, monkeypatch):
    monkeypatch.setattr("localspec.cli.commands.run.on_terminal", lambda stream: True)
    assert main(["run", "demo", "Hello", "-q", *QUICK]) == 0
    assert capsys.readouterr().err == "notice: the conversation is not stored: No space left on device\n"


def test_files_follow_the_prompt_under_their_names(tmp_path):
    (tmp_path / "a.py").write_text("print('```')\n```\n")
    text = with_files("Explain:", [tmp_path / "a.py"])
    assert text == "Explain:\n\na.py:\n\n````py\nprint('```')\n```\n````"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe", "no"),
        (b"a\0b", "not a text file"),
        (None, "cannot be read"),
        ("folder", "cannot be read"),
    ],
)
def test_what_is_no_text_is_not_attached(tmp_path, content, says):
    path = tmp_path / "file"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSetting, match=says):
        attached(path)


def test_settings_are_shown_with_their_source(home, monkeypatch, capsys):
    home.mkdir()
    (home / "config.toml").write_text('temperature = 0.5\npair = "demo"\n')
    monkeypatch.setenv("LOCALSPEC_PAIR", "demo")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert f"0.5  {home / 'config.toml'}" in printed
    assert '"demo"  LOCALSPEC_PAIR' in printed
    assert "hf_secret" not in printed
    assert main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["temperature"] == {"value": 0.5, "source": str(home / "config.toml")}
    assert found["settings"]["top_k"] is None
    assert found["paths"]["data"] == str(home / "data")
    assert found["paths"]["conversations"] == str(home / "data" / "chats.db")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_passwords_in_addresses_are_not_shown(monkeypatch, capsys, form):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy:3128")
    monkeypatch.setenv("HTTP_PROXY", "me:hunter2@proxy:3128")
    monkeypatch.setenv("HF_ENDPOINT", "https://hunter2@mirror/hub")
    assert main(["config", *form]) == 0
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    for shown in ("http://...@proxy:3128", "https://...@mirror/hub"):
        assert shown in printed


def test_a_terminal_that_obeys_nothing_gets_no_sequence(terminal, monkeypatch):
    streams = terminal()
    monkeypatch.setenv("TERM", "dumb")
    display.say_dimmed("thought")
    assert not display.DrawnLine(sys.stderr).draw("stage")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    display.say_dimmed("thought")
    assert streams["stderr"].getvalue() == "thoughtthought"


def completed(line):
    environment = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    code = "import os, sys; os.dup2(1, 8); os.dup2(2, 9)\nfrom localspec.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    return [word.strip() for word in done.stdout.split("\013")]


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("localspec run --max", "--max-tokens"),
        ("localspec chat qwen3-4b", "qwen3-4b+0.6b"),
        ("localspec run -m dem", "demo"),
    ],
)
def test_tab_completes_commands_options_and_pairs(line, word):
    assert word in completed(line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_names_the_program(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "localspec" in capsys.readouterr().out
