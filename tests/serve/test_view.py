"""What whoever runs the endpoint sees: a table on a terminal, sentences in a log."""

import io
import sys

import pytest

from localspec.cli.printing import DrawnLine
from localspec.cli.serve_view import View
from localspec.events import FinishReason, Reply
from localspec.stats import Stats

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
    view = View(DrawnLine(output))
    view.replied(REPLY)
    view.replied(REPLY)
    head, *rows = output.getvalue().replace("\r\x1b[K", "").split("\n")[:-1]
    if terminal:
        assert head.split()[:3] == ["answered", "prompt", "of"]
        assert [row.split()[1:] for row in rows] == [
            ["100", "10", "50", "25.0", "2.50", "75%", "2.00", "stop"]
        ] * 2
    else:
        assert "50 tokens, 25 tokens/s" in head
        assert len(rows) == 1
