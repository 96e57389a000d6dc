"""`localspec chat` on the command line: what its options become."""

import argparse

import pytest

from localspec.cli import chat
from localspec.engine.messages import Load, ReplySettings
from localspec.errors import BadSetting


def parse(*words):
    parser = argparse.ArgumentParser()
    chat.add_parser(parser.add_subparsers())
    return parser.parse_args(["chat", *words])


def test_options_reach_the_engine():
    arguments = parse(
        "--pair", "demo", "--threads", "3", "--temperature", "0.5", "--depth", "auto", "--stop", "END"
    )
    assert chat.load_request(arguments, "") == Load(pair="demo", threads=3)
    assert chat.reply_settings(arguments) == ReplySettings(temperature=0.5, depth="auto", stop=("END",))


def test_no_draft_neither_loads_nor_uses_a_draft():
    arguments = parse("--no-draft")
    assert chat.load_request(arguments, "") == Load(speculate=False)
    assert chat.reply_settings(arguments) == ReplySettings(speculate=False)


def test_a_resumed_conversation_brings_its_pair_unless_another_is_named_or_it_is_unknown():
    assert chat.load_request(parse(), "demo").pair == "demo"
    assert chat.load_request(parse("--pair", "other"), "demo").pair == "other"
    assert chat.load_request(parse(), "some-file").pair is None


def test_resume_takes_a_name_or_none():
    assert parse().resume is None
    assert parse("--resume").resume == ""
    assert parse("--resume", "2025").resume == "2025"


def test_without_a_terminal_there_is_a_sentence():
    with pytest.raises(BadSetting, match="terminal"):
        chat.run(parse())
