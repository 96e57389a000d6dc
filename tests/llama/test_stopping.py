"""A load and the reading of a prompt end where somebody asks; what is left can be used."""

import logging
import os
import signal
import sys
import time

import numpy as np
import pytest

import localspec
from localspec.cli import main
from localspec.llama.library import lib, logger
from localspec.llama.model import Model
from localspec.stopping import Stop, WorkStopped, current_stop, stopping_at
from tests.llama.rows import NEAR, row_after

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Ctrl-C goes to all processes of a console there"
)


class CtrlC(logging.Handler):
    """Comes while llama.cpp logs its line of this number, which Python is called for out of C."""

    def __init__(self, line):
        super().__init__(logging.DEBUG)
        self.line = line

    def emit(self, record):
        self.line -= 1
        if self.line == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def lines_until(monkeypatch):
    """lines_until(work, line) does the work with Ctrl-C at a line of the log; how many lines were left for it then."""
    lost = []
    monkeypatch.setattr("sys.unraisablehook", lost.append)

    def work_until(work, line):
        handler, level = CtrlC(line), logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            work()
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)
            assert not lost
        return handler.line

    return work_until


@pytest.mark.process
@pytest.mark.parametrize("mmap", [True, False])
def test_ctrl_c_at_any_line_of_the_log_ends_the_load_of_a_file(tiny_gguf, lines_until, mmap):
    path = tiny_gguf()
    lines = -lines_until(lambda: Model(path, mmap=mmap).close(), 0)
    for line in range(1, lines, lines // 12):
        with pytest.raises(KeyboardInterrupt):
            lines_until(lambda: Model(path, mmap=mmap), line)


@pytest.mark.process
def test_ctrl_c_at_any_line_of_the_log_ends_the_load_of_a_pair(lines_until):
    localspec.load("demo").close()  # what models need is found out by the first load
    lines = -lines_until(lambda: localspec.load("demo").close(), 0)
    for line in range(1, lines * 3 // 4, lines // 8):  # a busy machine warms up with fewer passes
        with pytest.raises(KeyboardInterrupt):
            lines_until(lambda: localspec.load("demo"), line)


@pytest.mark.process
def test_a_command_whose_load_is_ended_says_nothing_and_ends_with_130(home_of_processes, lines_until, capsys):
    ended = []
    for line in (1, 400):
        lines_until(lambda: ended.append(main(["bench", "--pair", "demo"])), line)
    assert ended == [130, 130]
    assert capsys.readouterr() == ("", "")


def test_a_load_that_is_asked_to_stop_is_no_bad_file(tiny_gguf):
    stop = Stop()
    stop.ask()
    with stopping_at(stop), pytest.raises(WorkStopped):
        Model(tiny_gguf())


@pytest.mark.parametrize("architecture", ["llama", "mamba", "lfm2"])
def test_a_chunk_that_is_cancelled_was_not_read_and_can_be_read_again(
    context, tokens, architecture, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("localspec.llama.context._LONG_PASS", 0)
    shape, settings = {"architecture": architecture}, {"batch_size": 16, "checkpoint_bytes": 1_000_000}
    reader, fresh = context(settings, **shape), context(**shape)
    cancels = []
    chunks = reader.prefill(tokens(40), lambda: bool(cancels))
    assert len(next(chunks).tokens) == 16
    reader.checkpoint(lasting=True)

    stopped = Stop()
    stopped.ask()
    with monkeypatch.context() as patch:  # llama.cpp ends the pass before its first node
        patch.setattr("localspec.llama.context.Stop", lambda: stopped)
        caplog.clear()
        cancels.append(True)
        assert list(chunks) == []
    assert not caplog.records, "nobody needs to know"
    assert reader.length == 16
    assert [len(batch.tokens) for batch in reader.prefill(tokens(40)[16:])] == [16, 8]
    got = reader.decode([9], 1).rows[0]
    assert np.abs(got - row_after(fresh, [*tokens(40), 9])).max() < NEAR


def test_a_short_chunk_is_read_to_its_end_and_a_long_one_asks_whether_it_is_cancelled(
    context, tokens, monkeypatch
):
    asked = []
    reader = context({"batch_size": 16})
    assert len(list(reader.prefill(tokens(40), lambda: asked.append(True) or True))) == 3
    assert not asked
    monkeypatch.setattr("localspec.llama.context._LONG_PASS", 0)
    decode = reader.decode

    def decode_once_asked(*given):
        while not current_stop().asked:
            time.sleep(0.001)
        return decode(*given)

    monkeypatch.setattr(reader, "decode", decode_once_asked)
    assert list(reader.prefill(tokens(40), lambda: True)) == []
    assert reader.length == 40


def test_llama_cpp_gets_each_stop_once_because_it_logs_that(tiny_gguf, monkeypatch):
    given, call = [], lib.llama_set_abort_callback
    with localspec.load(target=tiny_gguf()) as session:
        session.run("a", max_tokens=8)
        monkeypatch.setattr(lib, "llama_set_abort_callback", lambda *some: given.append(some) or call(*some))
        session.run("a b", max_tokens=8)
        assert given == []
        with stopping_at(Stop()):
            session.run("c d", max_tokens=8)
        assert len(given) == 1
