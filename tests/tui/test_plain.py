"""The chat line by line: what goes in and what comes out of pipes."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from driving import all_in
from localspec.tui.plain import chat
from localspec.tui.state.chat import Setup
from scripted_engine import ESSAY, ScriptedEngine, ScriptedWorkshop
from scripted_pairs import called

from localspec.cli.commands import chat as command
from localspec.cli.program import parser
from localspec.engine.messages import LoadPair


@pytest.fixture
def talk(tmp_path, monkeypatch, capsys):
    """The chat with these lines on stdin: exit code, stdout, stderr, and the conversations it saved."""

    def talk(*lines, pair="demo"):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        engine = ScriptedEngine(ScriptedWorkshop())
        engine.start()
        engine.send(load := LoadPair(called(pair)))
        code = chat(Setup(engine, tmp_path, load=load, downloads=engine.handler.pairs))
        printed = capsys.readouterr()
        return code, printed.out, printed.err, all_in(tmp_path)

    return talk


def test_replies_come_on_stdout_and_the_rest_on_stderr(talk):
    code, out, err, saved = talk("exact one", "", "exact two")
    assert (code, out) == (0, "one\ntwo\n")
    assert "demo is ready." in err
    assert err.count(" tok/s") == 2
    assert [message.content for message in saved[0].messages] == ["exact one", "one", "exact two", "two"]


def test_a_message_of_several_lines_stands_between_quotes(talk):
    _code, out, _err, saved = talk('"""exact one', "two", 'three"""', 'exact "quoted"')
    assert out == 'one\ntwo\nthree\n"quoted"\n'
    assert saved[0].messages[0].content == "exact one\ntwo\nthree"


def test_commands_work_as_on_the_screen(talk):
    lines = ("why?", "/edit", "exact changed", "/retry", "/version 1", "/rename A title")
    code, out, err, saved = talk(*lines, "/exit", "exact never")
    assert code == 0
    assert out == f"{ESSAY}changed\nchanged\nchanged\n"
    assert "The next message replaces: why?" in err
    assert saved[0].title == "A title"
    assert len(saved[0].messages[1].versions) == 2


def test_every_command_runs_without_a_screen(talk):
    words = ["help", "stats", "thinking", "pair", "load", "theme", "compare", "nonsense", "tokens", "copy"]
    _code, _out, err, _saved = talk("exact so", *(f"/{word}" for word in words))
    answers = ("/quit: Leave", "1 token ·", "Reasoning is shown", "qwen3-8b+0.6b: ", ": exact so")
    for text in (*answers, "2.0 times as fast", "no command /nonsense"):
        assert text in err


def test_help_lists_what_lines_can_do_and_the_rest_says_what_to_use(talk):
    _code, _out, err, _saved = talk("/help", "/tokens on", "/theme", "/stop")
    listed, _, printed = err.partition('"""')
    assert not re.search(r"^/(tokens|theme|stop)\b", listed, re.MULTILINE)
    assert "/tokens works only on the screen" in printed
    assert "/theme works only on the screen" in printed
    assert "No reply runs; ^c stops one." in printed


def test_a_comparison_shows_its_texts_and_stdout_has_replies_only(talk):
    _code, out, err, _saved = talk("exact so", "/compare", "differ please", "/compare")
    assert "plain decoding:\nso\n\n2.0 times as fast" in err
    assert re.search(r"plain decoding:\n.+\n\nwith drafting:\n.+\n\n2.0 times", err, re.DOTALL)
    assert "with drafting" not in out


def test_a_change_of_a_message_can_be_left(talk):
    _code, _out, err, saved = talk("exact one", "/edit", "/stop", "exact two")
    assert "/stop leaves it as it was." in err
    assert "The message stays as it was." in err
    assert [message.content for message in saved[0].messages] == ["exact one", "one", "exact two", "two"]


def test_messages_name_commands_and_no_keys_of_the_screen(talk):
    lines = ("/version", "/frobnicate", "/pull", "exact one", "/version", "/load zz")
    _code, _out, err, _saved = talk(*lines)
    assert "/help lists the commands." in err
    assert "/retry makes another." in err
    assert not re.search(r"\bF\d|\^[a-bd-z]|Ctrl\+|\bEsc\b", err.partition("leaves.")[2] or err)


@pytest.mark.process
def test_a_line_that_is_no_text_is_read_as_far_as_it_is(tmp_path):
    script = str(Path(__file__).parent / "scripted_chat.py")
    command_line = [sys.executable, script, str(tmp_path), "--plain"]
    done = subprocess.run(command_line, input=b"exact \xff\xfeone\n", capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode()) == (0, "\ufffd\ufffdone\n"), done.stderr


def test_a_message_without_a_reply_is_taken_back_and_makes_the_exit_code(talk):
    code, out, err, saved = talk("exact one", "fail please")
    assert (code, out) == (1, "one\n")
    assert "error: The prompt does not fit into the context.\nhint: Start a new chat with /new." in err
    assert [message.content for message in saved[0].messages] == ["exact one", "one"]


def test_a_pair_that_is_not_here_is_reported(talk):
    _code, _out, err, _saved = talk("/quit", pair="llama-3-8b+1b")
    assert "llama-3-8b+1b is not on this machine (6.1 GB to download).\n/pull downloads it" in err


def test_a_second_pull_is_the_yes_to_the_question(talk):
    _code, _out, err, _saved = talk("/pull llama-3-8b+1b", "/quit")
    assert "Download llama-3-8b+1b, 6.1 GB? /pull llama-3-8b+1b downloads it." in err
    assert "on disk" not in err
    _code, _out, err, _saved = talk("/pull llama-3-8b+1b", "/pull llama-3-8b+1b", "/quit")
    assert "llama-3-8b+1b is on disk" in err


def test_without_a_terminal_only_lines_are_possible(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(command.BadSetting, match="chat needs a terminal") as refused:
        command.run(parser().parse_args(["chat"]))
    assert "--plain" in refused.value.hint
