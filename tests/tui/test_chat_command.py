"""`localspec chat` on the command line: what its options become."""

from pathlib import Path

import pytest
from driving import stored
from localspec.tui.app import ChatApp
from scripted_engine import ScriptedEngine

from localspec.cli import program
from localspec.cli.commands import chat
from localspec.cli.loading import load_request
from localspec.cli.program import parser
from localspec.conversations.conversations import StoredMessage
from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting
from localspec.models.local_models import mark_used
from localspec.models.names import of_file
from localspec.models.registry import named
from localspec.options import data_dir
from localspec.prompt.messages import Message

pytestmark = pytest.mark.usefixtures("home")
OTHER = "qwen3-8b+0.6b"


def parse(*words):
    return parser().parse_args(["chat", *words])


def resumed(pair, files=(), words=()):
    """The pair that a chat loads which resumes a conversation with a pair."""
    chat.take_pair_of(pair, files, arguments := parse(*words))
    return load_request(arguments, leave_missing=True).pair


def test_options_reach_the_engine():
    arguments = parse(
        "--pair", "demo", "--threads", "3", "--temperature", "0.5", "--depth", "auto", "--stop", "END"
    )
    assert load_request(arguments) == LoadPair(named("demo"), {"threads": 3})
    assert chat.reply_settings(arguments) == {"temperature": 0.5, "depth": "auto", "stop": ["END"]}


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--temperature", "-3"), "temperature"),
        (("--top-p", "2"), "--top-p"),
        (("--max-tokens", "-1"), "--max-tokens"),
        (("--depth", "-1"), "depth"),
        (("--rule", "magic"), "rule"),
    ],
)
def test_a_reply_option_that_no_message_could_use_is_refused_at_once(words, wrong):
    with pytest.raises(BadSetting, match=wrong) as refused:
        chat.reply_settings(parse(*words))
    assert refused.value.hint


def test_no_draft_neither_loads_nor_uses_a_draft():
    arguments = parse("--no-draft")
    assert load_request(arguments) == LoadPair(named("demo"), speculate=False)
    assert chat.reply_settings(arguments) == {"speculate": False}


def test_a_resumed_conversation_brings_its_pair_unless_another_is_named_or_it_is_unknown():
    assert resumed("demo").name == "demo"
    assert resumed("demo", words=("--pair", OTHER)).name == OTHER
    assert resumed("some-file").name == "demo"


def test_a_resumed_conversation_brings_its_files_while_they_are_there(tmp_path, capsys):
    target, draft = (str(tmp_path / name) for name in ("mine.gguf", "small.gguf"))
    for file in (target, draft):
        Path(file).write_bytes(b"GGUF")
    files = (target, draft)
    assert resumed("mine", files).paths == (target, draft)
    assert resumed("mine", files, ("--pair", OTHER)).name == OTHER
    Path(target).unlink()
    assert resumed("mine", files).name == "demo"
    assert f"whose file {target} is missing" in capsys.readouterr().err


def test_the_configured_pair_is_asked_for_by_name_unless_something_else_was_named(monkeypatch, tiny_gguf):
    monkeypatch.setenv("LOCALSPEC_PAIR", "llama-3.1-8b+1b")
    assert resumed("").name == "llama-3.1-8b+1b"
    assert resumed("demo").name == "demo"
    assert resumed("", words=("--pair", OTHER)).name == OTHER
    path = str(tiny_gguf())
    assert resumed("", words=("--target", path)).paths == (path,)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Runs `localspec chat` up to its screen; what that is given."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("localspec.engine.client.EngineProcess", ScriptedEngine)
    setups = []
    monkeypatch.setattr("localspec.tui.app.chat", lambda setup: setups.append(setup) or 0)

    def begin(*words):
        assert chat.run(parse(*words)) == 0
        return setups[-1]

    begin.setups = setups
    return begin


def conversation(name, pair="demo", system="be brief"):
    """A conversation on disk."""
    stored(data_dir(), StoredMessage("user", "hi"), name=name, pair=pair, system=system)


@pytest.mark.parametrize(
    ("words", "system"),
    [((), "be brief"), (("--system", "Rhyme."), "Rhyme."), (("--system", ""), "")],
)
def test_a_system_prompt_that_was_given_is_the_one_of_the_resumed_conversation(
    begun, monkeypatch, words, system
):
    monkeypatch.setenv("LOCALSPEC_SYSTEM", "configured, for new conversations")
    conversation("20250101-a")
    turns = ChatApp(begun("--resume", *words)).state.conversation.turns()
    assert turns == (
        *([Message("system", system)] if system else []),
        Message("user", "hi"),
    )


def test_a_chat_without_a_store_loads_a_pair_that_remembers_no_replies(begun):
    setup = begun("--no-store")
    assert not setup.stored
    assert setup.load.options["cache_gb"] == 0
    assert begun().stored
    assert "cache_gb" not in begun().load.options


def test_without_a_name_the_chat_opens_the_file_that_was_used_last(begun, tiny_gguf):
    path = tiny_gguf()
    assert begun().load.pair == named("demo")
    mark_used(str(path))
    assert begun().load == LoadPair(of_file(path), draws=True)
    assert ChatApp(begun()).state.conversation.about.files == (str(path),)


@pytest.mark.parametrize("words", [(), ("--no-store",)])
def test_a_chat_that_stored_something_ends_with_the_command_that_continues_it(
    begun, words, capsys, monkeypatch
):
    talked = []
    monkeypatch.setattr("localspec.tui.plain.chat", lambda setup: bool(talked and conversation(talked[0])))
    for talked[:] in ([], ["20250101-a"]):
        program.run(["chat", "--plain", *words])
        ends = talked and not words
        printed = "Continue with: localspec --resume 20250101-a\n" if ends else ""
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize("words", [("--resume",), ("--resume", "2025"), ("--resume=2025",)])
def test_resume_without_a_command_opens_the_chat(begun, words):
    conversation("20250101-a")
    begun()
    assert program.run(words) == 0
    assert begun.setups[-1].resumed[1].name == "20250101-a"
