"""`localspec chat` on the command line: what its options become."""

from pathlib import Path

import pytest
from localspec.tui.app import ChatApp
from scripted_engine import ScriptedEngine

from localspec.chat import conversations
from localspec.chat.conversations import Journal, StoredMessage
from localspec.cli import program
from localspec.cli.commands import chat
from localspec.cli.program import parser
from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting
from localspec.models.places import mark_used
from localspec.options import data_dir

pytestmark = pytest.mark.usefixtures("home")


def parse(*words):
    return parser().parse_args(["chat", *words])


def test_options_reach_the_engine():
    arguments = parse(
        "--pair", "demo", "--threads", "3", "--temperature", "0.5", "--depth", "auto", "--stop", "END"
    )
    assert chat.load_request(arguments, "") == LoadPair(pair="demo", options={"threads": 3})
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


def test_what_an_answer_must_match_reaches_the_engine():
    assert chat.reply_settings(parse("--regex", "yes|no")) == {"regex": "yes|no"}


def test_no_draft_neither_loads_nor_uses_a_draft():
    arguments = parse("--no-draft")
    assert chat.load_request(arguments, "") == LoadPair(speculate=False)
    assert chat.reply_settings(arguments) == {"speculate": False}


def test_a_resumed_conversation_brings_its_pair_unless_another_is_named_or_it_is_unknown():
    assert chat.load_request(parse(), "demo").pair == "demo"
    assert chat.load_request(parse("--pair", "other"), "demo").pair == "other"
    assert chat.load_request(parse(), "some-file").pair is None


def test_a_resumed_conversation_brings_its_files_while_they_are_there(tmp_path, capsys):
    target, draft = (str(tmp_path / name) for name in ("mine.gguf", "small.gguf"))
    for file in (target, draft):
        Path(file).write_bytes(b"GGUF")
    log = Journal(data_dir() / "conversations" / "20250101-a.jsonl", "mine")
    log.files = conversations.files_of(target, draft)
    log.add(StoredMessage("user", "hi"))
    log.close()
    files = conversations.read(log.path).files
    assert chat.load_request(parse(), "mine", files) == LoadPair(target=target, draft=draft)
    assert chat.load_request(parse("--pair", "other"), "mine", files).pair == "other"
    Path(target).unlink()
    assert chat.load_request(parse(), "mine", files) == LoadPair()
    assert f"whose file {target} is gone" in capsys.readouterr().err


def test_the_configured_pair_is_asked_for_by_name_unless_something_else_was_named(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_PAIR", "llama-3.1-8b+1b")
    assert chat.load_request(parse(), "").pair == "llama-3.1-8b+1b"
    assert chat.load_request(parse(), "demo").pair == "demo"
    assert chat.load_request(parse("--pair", "other"), "").pair == "other"
    assert chat.load_request(parse("--target", "some.gguf"), "").pair is None


def test_resume_takes_a_name_or_none():
    assert parse().resume is None
    assert parse("--resume").resume == ""
    assert parse("--resume", "2025").resume == "2025"


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
    journal = Journal(data_dir() / "conversations" / f"{name}.jsonl", pair, system)
    journal.add(StoredMessage("user", "hi"))
    journal.close()


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
        *([{"role": "system", "content": system}] if system else []),
        {"role": "user", "content": "hi"},
    )


def test_a_chat_without_a_store_loads_a_pair_that_remembers_no_replies(begun):
    setup = begun("--no-store")
    assert not setup.stored
    assert setup.load.options["cache_gb"] == 0
    assert begun().stored
    assert "cache_gb" not in begun().load.options


def test_without_a_name_the_chat_opens_the_file_that_was_used_last(begun, tiny_gguf):
    path = tiny_gguf()
    assert begun().load.pair == "demo"
    mark_used(str(path))
    assert begun().load == LoadPair(target=str(path))
    assert ChatApp(begun()).state.conversation.journal.files == (str(path),)


@pytest.mark.parametrize("words", [("--resume",), ("--resume", "2025"), ("--resume=2025",)])
def test_resume_without_a_command_opens_the_chat(begun, words):
    conversation("20250101-a")
    begun()
    assert program.run(words) == 0
    assert begun.setups[-1].resumed[1].name == "20250101-a"


def test_without_a_terminal_there_is_a_sentence():
    with pytest.raises(BadSetting, match="terminal"):
        chat.run(parse())
