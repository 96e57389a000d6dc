"""What whoever runs the endpoint sees: a line for each request that wrote a reply or failed."""

import errno
import io
import logging
import re
import sys
from dataclasses import replace

import pytest

from localspec.cli.commands.serve import TerminalLog
from localspec.display import DrawnLine, LibraryNotices
from localspec.events import FinishReason, Reply, Stats
from localspec.serve.numbers import Served

COUNTS = {"cycles": 20, "emitted": 50, "drafted": 40, "accepted": 30}
COUNTS |= {"prompt_tokens": 100, "reused_tokens": 90}
STATS = Stats(**COUNTS, verify_seconds=2.0, plain_seconds=4.0)
REPLY = Reply("", "", (), 0, FinishReason.STOP, STATS)


class Output(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def shown(monkeypatch, served, *, terminal=False, columns=80):
    """What the log prints for a request, without what it draws."""
    output = Output(terminal)
    monkeypatch.setattr(sys, "stderr", output)
    monkeypatch.setenv("COLUMNS", str(columns))
    TerminalLog(DrawnLine(output)).served(served)
    return output.getvalue().replace("\r\x1b[K", "")


def test_a_request_is_one_line_with_its_path_outcome_and_tokens(monkeypatch):
    line = shown(monkeypatch, Served("POST", "/v1/chat/completions", 200, 2.25, replies=(REPLY,)))
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d  POST /v1/chat/completions 200 in 2\.2 s: "
        r"50 tokens at 25/s, 2\.00x plain, prompt 100 \(90 cached\)\n",
        line,
    )


def test_the_line_of_a_request_names_the_model_that_answered(monkeypatch):
    line = shown(monkeypatch, Served("POST", "/v1/x", 200, 2.0, replies=(replace(REPLY, target="Qwen3 4B"),)))
    assert "200 in 2.0 s: Qwen3 4B, 50 tokens at 25/s" in line


def test_several_replies_and_one_at_its_limit_say_so(monkeypatch):
    cut = replace(REPLY, finish_reason=FinishReason.LENGTH)
    line = shown(monkeypatch, Served("POST", "/v1/chat/completions", 200, 2.0, replies=(REPLY, cut)))
    assert "2 replies, 100 tokens at 25/s, 2.00x plain, cut by the limit, prompt 200 (180 cached)" in line


def test_a_reply_that_waited_says_how_long(monkeypatch):
    waited = Served("POST", "/v1/x", 200, 9.0, replies=(REPLY,), waited_seconds=7.04)
    assert "POST /v1/x 200 in 9.0 s (waited 7.0 s): 50 tokens" in shown(monkeypatch, waited)


def test_a_refused_request_says_why_in_whole_words(monkeypatch):
    reason = "max_tokens is 'many', not a whole number (end the reply after N tokens)"
    text = shown(monkeypatch, Served("POST", "/v1/x", 400, 0.0, reason), terminal=True, columns=50)
    rows = text.splitlines()
    assert all(len(row) < 50 for row in rows)
    assert rows[1].startswith(" " * 10)
    assert " ".join(text.split())[9:] == f"POST /v1/x 400 in 0.0 s: {reason}"


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
    view.served(Served("GET", "/nope", 404, 0.0))
    view.show_line("listening")
    LibraryNotices().emit(logging.LogRecord("uvicorn", 30, "", 0, "a note", (), None))


def test_a_notice_is_in_the_log_once_among_the_latest_256(monkeypatch):
    output = Output(terminal=False)
    monkeypatch.setattr(sys, "stderr", output)
    view, served = TerminalLog(DrawnLine(output)), Served("POST", "/x", 200, 2.0, replies=(REPLY,))
    for number in (0, 0, *range(257), 256, 0):
        view.served(replace(served, notices=(f"about {number}",)))
    found = re.findall(r"notice: about (\d+)\n", output.getvalue())
    assert found == [*map(str, range(257)), "0"]  # the first one had left


def test_a_path_forges_no_line_of_the_log(monkeypatch):
    output = Output(terminal=False)
    monkeypatch.setattr(sys, "stderr", output)
    view = TerminalLog(DrawnLine(output))
    view.served(Served("GET", "/a\nlistening on http://evil\x1b[2K", 404, 0.0, "a\nb"))
    assert output.getvalue().count("\n") == 1
    assert "\x1b" not in output.getvalue()


def test_no_speed_up_is_shown_for_a_reply_without_drafts(monkeypatch):
    alone = replace(REPLY, stats=replace(STATS, drafted=0, accepted=0))
    assert "plain" not in shown(monkeypatch, Served("POST", "/v1/x", 200, 2.0, replies=(alone,)))
