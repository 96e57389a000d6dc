"""The chat on a terminal of its own, and with outputs that take nothing: how it ends, and what is kept."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driving import all_in
from terminal import Terminal

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals and signals of POSIX"),
]

HERE = Path(__file__).parent
PLAIN = (sys.executable, str(HERE / "scripted_chat.py"))
# The whole program on the scripted engine, with a fault of its own.
BROKEN = """
import asyncio, sys
from localspec.cli import main
from localspec.engine.client import EngineProcess
from localspec.tui.app import ChatApp
from localspec.tui.widgets.lines import Inspector

EngineProcess.__init__.__defaults__ = ((sys.executable, sys.argv[1]), None)
secret_of_the_person = "never to be on a screen"

def replies(app):
    reply = app.state.engine.reply
    return reply is not None and reply.tally.sums.cycles >= 3

def fail(app):
    if replies(app):
        raise ZeroDivisionError("by \\x1b]0;nothing\\x07")

FAULTS = {
    "drawing": lambda app: setattr(Inspector, "show", lambda *_: fail(app)),
    "a timer": lambda app: app.set_interval(0.01, lambda: fail(app)),
    "a worker": lambda app: app.run_worker(fail_soon(app)),
    "the terminal": lambda app: app.set_interval(0.01, lambda: replies(app) and app.panic("frames")),
}

async def fail_soon(app):
    while not fail(app):
        await asyncio.sleep(0.01)

before = ChatApp.on_mount
ChatApp.on_mount = lambda app: (before(app), FAULTS[sys.argv[2]](app))[0]
sys.exit(main(["chat", "demo"]))
"""


@pytest.fixture
def terminal():
    opened = []

    def open_terminal(*command, **environment):
        opened.append(Terminal(*command, **environment))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def saved(folder):
    (conversation,) = all_in(folder)
    return [message.content for message in conversation.messages]


@pytest.mark.parametrize("fault", ["drawing", "a timer", "a worker", "the terminal"])
def test_what_nobody_foresaw_ends_the_chat_in_a_sentence_and_keeps_the_reply(terminal, tmp_path, fault):
    shown = terminal(
        *(sys.executable, "-c", BROKEN, str(HERE / "scripted_engine.py"), fault), LOCALSPEC_HOME=str(tmp_path)
    )
    shown.until("8,192")
    shown.type("tokens 4000\r")
    shown.until("\x1b[?1049l")  # the screen of before is back
    if fault == "the terminal":
        printed = shown.until("start it in a new terminal window")
        assert "error: localspec cannot read keys from this terminal" in printed
    else:
        printed = shown.until("no prompts and no keys")
        assert "error: localspec made a mistake: ZeroDivisionError: by \ufffd]0;nothing\ufffd" in printed
        (report,) = (tmp_path / "data" / "reports").iterdir()
        assert "ZeroDivisionError" in report.read_text("utf-8")
        assert "never to be on a screen" not in report.read_text("utf-8")
    assert shown.ended() == 1
    assert "Traceback" not in printed
    assert "never to be on a screen" not in printed
    question, reply = saved(tmp_path / "data")
    assert question == "tokens 4000"
    assert reply.startswith("## Why a draft helps")


def test_bytes_that_are_no_utf_8_end_no_chat_and_lose_nothing_that_was_typed(terminal, tmp_path):
    shown = terminal(*PLAIN, str(tmp_path))
    shown.until("8,192")
    shown.type("tokens 4000\r")
    shown.until("tok/s")
    shown.type("exact half typed caf")
    shown.type(b"\xe9 ")  # of a terminal in Latin-1
    shown.type(b"\x1b[200~na\xefve \x81\xff\x80\xe2\x82\x1b[201~")  # a paste that ends within a character
    shown.type(b" \xe2\x82")
    shown.until("caf\xe9 na\xefve")
    shown.type(b"\xac \xf0\x9f")  # the rest of the one before, and the beginning of another
    shown.type("\x03")
    shown.until("stopped")
    shown.type("\r")
    while len(saved(tmp_path)) < 4:
        assert shown.read(0.1)
    shown.type("\x11")
    assert shown.ended() == 0, shown.drawn[-500:]
    assert saved(tmp_path)[2:] == [
        text := "exact half typed caf\xe9 na\xefve \ufffd\xff\u20ac\xe2\u201a \u20ac \xf0\u0178",
        text.removeprefix("exact "),
    ]


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGTSTP])
def test_after_stops_the_chat_answers_and_leaves_the_terminal_as_it_was(terminal, tmp_path, stop):
    shown = terminal(*PLAIN, str(tmp_path))
    modes = shown.modes
    shown.until("8,192")
    for _ in range(3):
        shown.process.send_signal(stop)
        assert os.waitpid(shown.process.pid, os.WUNTRACED)[1] & 0xFF == 0x7F  # it stands still
        shown.process.send_signal(signal.SIGCONT)
        shown.until("Ask anything")
    shown.type("tokens 5\r")
    shown.until("acceptance ")  # in the line below the reply
    shown.type("\x11")
    shown.until("\x1b[?1049l")
    assert shown.ended() == 0
    assert shown.modes == modes
    assert saved(tmp_path) == ["tokens 5", "## Why a draft helps"]


def test_line_by_line_a_prompt_stands_last_and_ctrl_c_clears_what_was_half_typed(terminal, tmp_path):
    shown = terminal(*PLAIN, str(tmp_path), "--plain")
    assert "demo is ready.\r\n" in shown.until("> ")
    shown.type("exact never")
    shown.until("never")
    # `input` of Python sees one that comes just before it waits only with the next key.
    shown.until("^d or /quit leaves.", typing="\x03")
    shown.until("> ")
    shown.type("exact one\r")
    shown.until("\r\none\r\n")
    shown.until("> ")
    shown.type("tokens 4000\r")
    shown.until("Why a draft")
    shown.type("\x03")
    assert "stopped" in shown.until("> ")
    shown.type("\x04")
    assert shown.ended() == 0
    assert [message for message in saved(tmp_path) if "exact" in message] == ["exact one"]


def test_line_by_line_edit_puts_the_message_into_the_line_and_ctrl_c_leaves_it(terminal, tmp_path):
    shown = terminal(*PLAIN, str(tmp_path), "--plain")
    shown.until("> ")
    shown.type("exact one\r")
    shown.until("\r\none\r\n")
    shown.until("> ")
    shown.type("/edit\r")
    shown.until("> exact one")
    shown.until("The message stays as it was.", typing="\x03")
    shown.until("> ")
    shown.type("/edit\r")
    shown.until("> exact one")
    shown.type(" more\r")
    shown.until("\r\none more\r\n")
    shown.until("> ")
    shown.type("\x04")
    assert shown.ended() == 0
    assert saved(tmp_path) == ["exact one more", "one more"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["reading", "replying"])
def test_line_by_line_the_first_signal_ends_it_and_keeps_what_was_written(tmp_path, number, when):
    plain = subprocess.Popen(
        (*PLAIN, str(tmp_path), "--plain"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    plain.stdin.write("exact one\n" if when == "reading" else "tokens 4000\n")
    plain.stdin.flush()
    while "one" not in (line := plain.stdout.readline()) and "reads **all" not in line:
        assert line
    plain.send_signal(number)
    assert plain.wait(300) == -number
    plain.stdin.close()
    plain.stdout.close()
    assert saved(tmp_path)[1].startswith("one" if when == "reading" else "## Why")
    assert list((tmp_path / "conversations").glob("*.lock")) == []


@pytest.mark.parametrize("output", ["a reader that leaves", "a full disk", "nothing"])
def test_line_by_line_an_output_that_takes_nothing_ends_it_and_keeps_the_reply(tmp_path, output):
    ends = {"a reader that leaves": "| head -c 5", "a full disk": ">/dev/full", "nothing": ">&- 2>&-"}
    script = (
        f'printf "tokens 40\\nexact two\\n" | "$0" "$1" "$2" --plain {ends[output]}; echo ${{PIPESTATUS[1]}}'
    )
    done = subprocess.run(
        ("bash", "-c", script, *PLAIN, str(tmp_path)), capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout[-2] == ("0" if output == "nothing" else "1")
    assert saved(tmp_path)[1].startswith("##")
