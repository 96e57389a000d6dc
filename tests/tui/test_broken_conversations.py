"""Conversation files that are broken, odd, or of another version: what can be read of them is."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localspec.tui.state.conversation import to_markdown

from localspec.chat import conversations
from localspec.chat.conversations import Journal, Numbers, StoredMessage
from localspec.errors import BadSetting

QUESTION = StoredMessage("user", "why?")
ANSWER = StoredMessage("assistant", "so", outcome="stop")
HEAD = b'{"type":"conversation","version":1,"created":1.0,"pair":"demo","system":""}\n'
NUMBERS = (
    b'{"type":"message","role":"assistant","numbers":{"tokens":9,"seconds":0.5,"acceptance_rate":0.7,'
    b'"mean_accepted_length":2.4,"drafted":12,"speedup":null}}\n'
)


def journal(tmp_path):
    return Journal.new(tmp_path / "conversations", "demo", "")


@pytest.mark.parametrize(
    "content",
    [
        b"not json\n",
        b'{"type":"message"}\n',
        b'{"type":"conversation","version":99}\n',
        b"\xff\xfe\x00",
        b"[1]\n",
        b"[" * 100_000,
        HEAD.replace(b"1.0", b"-Infinity"),
    ],
    ids=lambda content: repr(content[:12] + content[-30:]),
)
def test_a_broken_file_is_named_skipped_and_left_alone(tmp_path, content):
    log = journal(tmp_path)
    log.add(QUESTION)
    broken = log.path.parent / "broken.jsonl"
    broken.write_bytes(content)
    found = conversations.listing(log.path.parent)
    assert [conversation.path for conversation in found.conversations] == [log.path]
    assert [path for path, _reason in found.broken] == [broken]
    assert broken.read_bytes() == content


def test_a_file_that_a_full_disk_left_empty_is_no_broken_conversation(tmp_path):
    log = journal(tmp_path)
    log.add(QUESTION)
    (log.path.parent / "empty.jsonl").touch()
    found = conversations.listing(log.path.parent)
    assert ([one.path for one in found.conversations], found.broken) == ([log.path], ())
    log.path.unlink()
    with pytest.raises(BadSetting, match="no conversation to resume"):
        conversations.find(log.path.parent, "")


def test_the_lines_that_are_broken_above_can_be_read_when_they_are_not(tmp_path):
    path = tmp_path / "whole.jsonl"
    path.write_bytes(HEAD + NUMBERS)
    assert conversations.read(path).messages[0].numbers == Numbers(9, 0.5, 0.7, 2.4, 12)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"hologram"}',
        b'{"role":"user","content":"typeless"}',
        b'{"type":"message","role":"user","content":5}',
        b'{"type":"message","role":"user","content":["a"]}',
        b'{"type":"message","role":null,"content":"a"}',
        b'{"type":"message","role":["user"],"content":"a"}',
        b'{"type":"message","role":"system","content":"a"}',
        b'{"type":"message","role":"assistant","reasoning_tokens":"3"}',
        b'{"type":"keep","count":Infinity}',
        b'{"type":"keep"}',
        b'{"type":"settings","pair":"x"}',
        b'{"type":"version","back":1,"role":"assistant","content":5}',
        b'{"type":"version","back":2,"role":"assistant","content":"of a question"}',
        b'{"type":"version","back":0,"role":"assistant","content":"a"}',
        b'{"type":"version","back":3,"role":"assistant","content":"a"}',
        b'{"type":"version","back":-1,"role":"assistant","content":"a"}',
        b'{"type":"choose","back":1,"version":0}',
        b'{"type":"choose","back":1,"version":-1}',
        b'{"type":"choose","back":true,"version":0}',
        b'{"type":"batch","records":5}',
        b'{"type":"batch","records":[7]}',
        b'{"type":"batch","records":[{"type":"batch","records":[]}]}',
        b"[1]",
        b"{}",
        b"torn",
        b"\xff",
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:70]),
)
def test_a_line_that_makes_no_sense_costs_itself_and_not_the_conversation(tmp_path, line):
    log = journal(tmp_path)
    log.add(QUESTION)
    log.add(ANSWER)
    log.path.write_bytes(log.path.read_bytes() + line + b"\n")
    log.add(StoredMessage("user", "and now?"))
    conversation = conversations.read(log.path)
    assert conversation.messages == (QUESTION, ANSWER, StoredMessage("user", "and now?"))
    assert conversation.lost_lines == 1


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["message", "keep", "user", ""]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3),
    max_leaves=5,
)
KEYS = [
    "at",
    "role",
    "content",
    "count",
    "back",
    "version",
    "numbers",
    "reasoning_tokens",
    "pair",
    "system",
    "records",
]
KINDS = ["message", "keep", "settings", "version", "choose", "batch"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(KEYS), JSON).flatmap(
            lambda values: st.sampled_from(KINDS).map(lambda kind: {"type": kind, **values})
        )
    )
)
def test_no_line_keeps_a_conversation_from_being_read_listed_and_exported(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("c") / "odd.jsonl"
    lines = [json.dumps(record).encode() + b"\n" for record in records]
    path.write_bytes(HEAD + NUMBERS + b"".join(lines))
    conversation = conversations.listing(path.parent).conversations[0]
    to_markdown(conversation)
    for message in conversation.messages:
        assert message.role in ("user", "assistant")
        assert not message.versions or message.versions[message.version].content == message.content


@pytest.mark.parametrize(
    "field",
    [b'"mood":"blue",', b'"versions":5,', b'"version":7,', b'"at":"noon",', b'"at":1%s,' % (b"0" * 400)],
)
def test_a_field_of_a_newer_version_costs_no_message(tmp_path, field):
    path = tmp_path / "newer.jsonl"
    path.write_bytes(
        HEAD + NUMBERS.replace(b'"tokens"', b'"watts":3,"tokens"').replace(b'"role"', field + b'"role"')
    )
    conversation = conversations.read(path)
    assert conversation.messages == (StoredMessage("assistant", "", numbers=Numbers(9, 0.5, 0.7, 2.4, 12)),)
    assert conversation.talked == 1.0


@pytest.mark.parametrize("wrong", [b'"fast"', b"null", b"[1]", b"Infinity", b"NaN", b"1" + b"0" * 400])
def test_numbers_that_are_none_cost_no_text(tmp_path, wrong):
    path = tmp_path / "odd.jsonl"
    path.write_bytes(HEAD + NUMBERS.replace(b"0.5", wrong).replace(b'"role"', b'"content":"so","role"'))
    assert conversations.read(path).messages == (StoredMessage("assistant", "so"),)
