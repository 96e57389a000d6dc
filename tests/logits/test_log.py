"""What a target holds for likely is logged where the user asks for it: its own rows, of the text that it wrote."""

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

import localspec
from localspec import demo
from localspec.chat.logits import KEPT, PROMPT, LogitLog, texts_in
from localspec.chat.reply import log_softmax
from localspec.cli import main
from localspec.cli.commands.fit import logged_texts
from localspec.events import Cycle
from localspec.gguf.facts import DraftKind
from localspec.llama.context import Context
from localspec.models.drafting import logit_folder, logits_dir
from localspec.models.places import ModelFile
from localspec.models.registry import Pair

pytestmark = pytest.mark.usefixtures("home_of_processes")

VOCABULARY = 500
FILES = Pair("demo", DraftKind.MODEL, ModelFile.at(demo.target_path()), ModelFile.at(demo.draft_path()))


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Nothing is left out because the machine is busy."""
    monkeypatch.setattr("localspec.chat.logits.WAITING", 10_000)


def logging_session(**options):
    return localspec.load("demo", threads=1, remember_logits=True, **options)


def logged():
    return list(texts_in(logit_folder(FILES)))


def tokens_in(texts):
    return [token for text in texts for token in text.tokens.tolist()]


@pytest.fixture
def rows_behind(monkeypatch):
    """The target's rows behind its tokens: of the newest pass over each position, so behind what became the text."""
    decode, found = Context.decode, {}

    def recorded(self, tokens, rows):
        batch = decode(self, tokens, rows)
        if self.model.path == demo.target_path():
            first = batch.start + len(tokens) - rows
            found.update((first + i, (tokens[i - rows], np.array(row))) for i, row in enumerate(batch.rows))
        return batch

    monkeypatch.setattr(Context, "decode", recorded)
    return found


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.2, "seed": 5}])
def test_logged_rows_are_the_targets_own_where_drafts_were_rejected(options, monkeypatch, rows_behind):
    monkeypatch.setattr("localspec.chat.logits.PART", 20)
    with logging_session() as session:
        prompt = session.pair.vocabulary.tokenize("Once upon a time, " * 60, parse_special=False)
        reply = session.complete(prompt, depth=4, max_tokens=70, **options)
    assert 0 < reply.stats.accepted < reply.stats.drafted
    texts, whole = logged(), [*prompt, *reply.tokens]
    assert len(texts) > 2
    assert tokens_in(texts) == list(reply.tokens)
    at = len(prompt)
    for text in texts:
        assert text.prompt.tolist() == whole[max(at - PROMPT, 0) : at]
        for likely, log_shares in zip(text.likely, text.log_shares, strict=True):
            token, row = rows_behind[at - 1]
            own = log_softmax(row)
            assert token == whole[at - 1]
            assert log_shares == pytest.approx(own[likely], abs=0.01)
            assert set(likely.tolist()) == set(np.argsort(-own, kind="stable")[:KEPT].tolist())
            at += 1
    assert at == len(whole)


def test_nothing_is_logged_unasked(home_of_processes):
    with localspec.load("demo", threads=1) as session:
        session.run("Hello", max_tokens=10)
    assert not logits_dir().exists()


def test_a_configured_log_leaves_measurements_out(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_REMEMBER_LOGITS", "yes")
    assert main(["run", "Hello", "--pair", "demo", "--max-tokens", "5"]) == 0
    assert len(logged()) == 1
    assert main(["bench", "Hello", "--pair", "demo", "--max-tokens", "5"]) == 0
    assert len(logged()) == 1


def test_a_reply_is_the_same_with_and_without_a_log():
    texts = []
    for remember in (True, False):
        with localspec.load("demo", threads=1, remember_logits=remember) as session:
            texts.append(session.run("Tell me a story.", temperature=1, seed=3, max_tokens=60).text)
    assert texts[0] == texts[1]


def test_what_was_emitted_of_a_cancelled_reply_is_logged():
    with logging_session() as session:
        cycles = 0
        for event in session.stream("Tell me a story.", temperature=0, depth=4):
            cycles += isinstance(event, Cycle)
            if cycles == 3:
                session.cancel()
    assert tokens_in(logged()) == list(event.reply.tokens)


def test_what_was_emitted_of_a_stream_that_nobody_reads_on_is_logged():
    emitted = []
    with logging_session() as session:
        for event in session.stream("Tell me a story.", temperature=0, depth=4):
            emitted += event.tokens if isinstance(event, Cycle) else ()
            if len(emitted) > 5:
                break
        del event
    assert tokens_in(logged()) == emitted


def test_a_reply_that_a_stop_string_cut_is_logged_up_to_there():
    options = {"temperature": 0, "depth": 4, "max_tokens": 20}
    with logging_session() as session:
        replies = [session.run("Tell me a story.", **options)]
        for stop in replies[0].text.split()[1:6]:
            session.reset()
            replies.append(session.run("Tell me a story.", stop=(stop,), **options))
    assert tokens_in(logged()) == [token for reply in replies for token in reply.tokens]


def rows(count):
    return list(np.random.default_rng(count).normal(size=(count, VOCABULARY)).astype(np.float32))


def test_the_oldest_go_where_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.chat.logits.BUDGET_BYTES", 60_000)
    with LogitLog(tmp_path) as log:
        for number in range(40):
            reply = log.begin([number])
            reply.see(rows(10), range(10))
            reply.end(10)
    numbers = [int(text.prompt[0]) for text in texts_in(tmp_path)]
    assert numbers == list(range(40 - len(numbers), 40))
    assert 40_000 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 60_000


def test_what_comes_faster_than_it_is_read_is_left_out_to_the_end_of_the_reply(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.chat.logits.WAITING", 7)
    with LogitLog(tmp_path) as log:
        busy, read = threading.Event(), threading.Event()
        log.later(busy.wait)
        first, second = log.begin([1]), log.begin([2])
        first.see(rows(5), range(5))
        first.see(rows(5), range(5, 10))
        busy.set()
        first.end(10)
        log.later(read.set)
        read.wait()
        first.see(rows(5), range(10, 15))
        second.see(rows(5), range(5))
        second.end(5)
    assert [text.tokens.tolist() for text in texts_in(tmp_path)] == [list(range(7)), list(range(5))]


def test_a_full_disk_is_told_once_and_leaves_replies_alone(monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    with caplog.at_level(logging.WARNING), logging_session() as session:
        monkeypatch.setattr("localspec.chat.logits.write_atomically", full)
        replies = [session.run("Hello", temperature=0, max_tokens=8) for _ in range(3)]
    assert all(len(reply.tokens) == 8 for reply in replies)
    assert [record.getMessage() for record in caplog.records if "logged" in record.getMessage()] == [
        f"replies cannot be logged in {logit_folder(FILES)}: No space left on device"
    ]


def test_what_was_logged_is_forgotten_on_request(capsys):
    with logging_session() as session:
        session.run("Hello", max_tokens=10)
    assert logged()
    assert main(["rm", "--replies"]) == 0
    assert "removed " in capsys.readouterr().out
    assert not logged()
    assert main(["rm", "--replies"]) == 0
    assert capsys.readouterr().out == "nothing to remove: no reply is stored\n"


def test_what_is_fitted_learns_from_the_log_of_its_target_alone(capsys, tiny_adapter):
    with logging_session() as session:
        reply = session.run("Hello", temperature=0, max_tokens=10)
    assert tokens_in(logged_texts({}, FILES)) == list(reply.tokens)
    assert "learns from 10 tokens of logged replies as well" in capsys.readouterr().err
    assert not logged_texts({}, replace(FILES, target=FILES.draft))
    assert not logged_texts({"lora": str(tiny_adapter())}, FILES)
