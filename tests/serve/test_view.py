"""What whoever runs the endpoint sees: a table on a terminal, sentences in a log."""

import errno
import io
import logging
import sys

import pytest

from localspec.cli.commands.serve import TerminalLog
from localspec.display import DrawnLine, NotesOfLibraries
from localspec.events import FinishReason, Reply, Stats

STATS = Stats(
    cycles=20,
    emitted=50,
    drafted=40,
    accepted=30,
    prompt_tokens=100,
    reused_tokens=90,
    verify_seconds=2.0,
    plain_seconds=4.0,
)
REPLY = Reply("", "", (), 0, FinishReason.STOP, STATS)


class Output(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_each_reply_is_a_row_on_a_terminal_and_a_sentence_elsewhere(monkeypatch, terminal):
    output = Output(terminal)
    monkeypatch.setattr(sys, "stderr", output)
    view = TerminalLog(DrawnLine(output))
    view.replied(REPLY)
    view.replied(REPLY)
    head, *rows = output.getvalue().replace("\r\x1b[K", "").split("\n")[:-1]
    if terminal:
        assert head.split()[:3] == ["time", "prompt", "read"]
        assert len(head) < 80
        assert [row.split()[1:] for row in rows] == [
            ["100", "10", "50", "25.0", "2.50", "75%", "2.00", "stop"]
        ] * 2
    else:
        assert "50 tokens, 25 tokens/s" in head
        assert len(rows) == 1


class Broken(Output):
    def __init__(self, terminal, error):
        super().__init__(terminal)
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch, terminal, error):
    output = Broken(terminal, error)
    monkeypatch.setattr(sys, "stderr", output)
    monkeypatch.setattr(sys, "stdout", output)
    view = TerminalLog(DrawnLine(output))
    view.replied(REPLY)
    view.refused("GET", "/nope", 404)
    view.said("listening")
    NotesOfLibraries().emit(logging.LogRecord("uvicorn", 30, "", 0, "a note", (), None))


def test_a_path_forges_no_line_of_the_log(monkeypatch):
    output = Output(terminal=False)
    monkeypatch.setattr(sys, "stderr", output)
    TerminalLog(DrawnLine(output)).refused("GET", "/a\nlistening on http://evil\x1b[2K", 404)
    assert output.getvalue().count("\n") == 1
    assert "\x1b" not in output.getvalue()
