"""The files of lines that earlier copies of localspec wrote are taken over once, whatever stands in them."""

import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localspec.tui.state.conversation import to_markdown

from localspec.chat import conversations
from localspec.chat.conversations import KEPT_SECONDS, OLD, StoredMessage
from localspec.chat.database import FILE

HEAD = {"type": "conversation", "version": 1, "created": 1.0, "pair": "demo", "system": "be brief"}
NUMBERS = {"tokens": 9, "seconds": 0.5, "acceptance_rate": 0.7, "mean_accepted_length": 2.4, "drafted": 12}
QUESTION = {"type": "message", "at": 2.0, "role": "user", "content": "why?"}
ANSWER = {"type": "message", "at": 3.0, "role": "assistant", "content": "so", "outcome": "stop"}
READ = (StoredMessage("user", "why?"), StoredMessage("assistant", "so", outcome="stop"))


def old(folder, *lines, name="20250101-a", head=HEAD):
    """A file as earlier copies wrote it; bytes are lines that are none."""
    path = folder / OLD / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    texts = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in (head, *lines))
    path.write_bytes(b"".join(text + b"\n" for text in texts if text))
    return path


def taken(folder, path):
    """The conversation that a file became."""
    assert conversations.find(folder, "") == path.stem
    assert not path.exists()
    assert path.with_name(f"{path.name}.imported").exists()
    return conversations.read(folder, path.stem)


def test_a_conversation_is_taken_over_with_versions_settings_title_and_what_replaced_what(tmp_path):
    path = old(
        tmp_path,
        {"type": "message", "role": "user", "content": "withdrawn"},
        {"type": "keep", "count": 0},
        {"type": "batch", "records": [QUESTION, ANSWER]},
        ANSWER | {"type": "version", "back": 1, "content": "air", "reasoning": "hm", "numbers": NUMBERS},
        ANSWER | {"type": "version", "back": 1, "content": "light"},
        {"type": "choose", "back": 1, "version": 1},
        {"type": "settings", "pair": "qwen", "system": "", "files": ["a.gguf"]},
        QUESTION | {"at": 9.0},
        {"type": "title", "title": "A title"},
    )
    found = taken(tmp_path, path)
    question, reply, _ = found.messages
    assert question == READ[0]
    assert [version.content for version in reply.versions] == ["so", "air", "light"]
    assert (reply.content, reply.version) == ("air", 1)
    assert (found.pair, found.system, found.files) == ("qwen", "", ("a.gguf",))
    assert (found.title, found.talked, reply.pair) == ("A title", 9.0, "demo")


def test_prompts_are_taken_over_and_go_with_the_conversation_also_where_its_question_was_withdrawn(
    tmp_path, home
):
    path = old(
        tmp_path,
        {"type": "message", "role": "user", "content": "gone"},
        {"type": "keep", "count": 0},
        QUESTION,
    )
    lines = ["gone", ["typed @file", path.stem], "harmless", 5, ["a", "b", "c"], {}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '"torn')
    assert conversations.prompts(tmp_path) == ["gone", "typed @file", "harmless"]
    assert not (tmp_path / "prompts.jsonl").exists()
    conversations.delete(tmp_path, path.stem)
    assert conversations.prompts(tmp_path) == ["harmless"]
    assert not list((tmp_path / OLD).iterdir())


def test_what_was_taken_over_or_set_aside_goes_after_thirty_days(tmp_path):
    path = old(tmp_path, QUESTION)
    taken(tmp_path, path)
    imported, damaged = path.with_name(f"{path.name}.imported"), tmp_path / f"{FILE}.damaged"
    damaged.touch()
    conversations.listing(tmp_path)
    assert imported.exists()
    for file in (imported, damaged):
        os.utime(file, (time.time() - KEPT_SECONDS - 60,) * 2)
    assert conversations.listing(tmp_path)
    assert not imported.exists()
    assert not damaged.exists()


def test_one_that_an_earlier_copy_has_open_waits_and_one_that_differs_from_its_rows_stays(tmp_path):
    path = old(tmp_path, QUESTION)
    lock = conversations.hold(tmp_path, path.stem)
    assert conversations.listing(tmp_path) == []
    lock.release()
    taken(tmp_path, path)
    old(tmp_path, QUESTION, ANSWER)  # from a backup
    assert [row.count for row in conversations.listing(tmp_path)] == [1]
    assert path.exists()
    assert len(conversations.read(tmp_path, path.stem).messages) == 1


@pytest.mark.parametrize(
    "head", [b"not json", {"type": "message"}, HEAD | {"version": 99}, [1], b"[" * 100_000, b""], ids=str
)
def test_a_file_that_is_no_conversation_is_named_and_kept(tmp_path, head, caplog):
    broken = old(tmp_path, head=head, name="broken")
    content = broken.read_bytes()
    path = old(tmp_path, QUESTION, ANSWER)
    assert taken(tmp_path, path).messages == READ
    conversations.listing(tmp_path)
    assert [record.message for record in caplog.records] == [
        "broken.jsonl is not a conversation; the file is kept as broken.jsonl.damaged"
    ]
    assert broken.with_name("broken.jsonl.damaged").read_bytes() == content


VERSION = {"type": "version", "role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "line",
    [
        {"type": "hologram"},
        QUESTION | {"role": ["user"]},
        QUESTION | {"role": "system"},
        ANSWER | {"reasoning_tokens": "3"},
        {"type": "keep", "count": float("inf")},
        {"type": "settings", "pair": "x"},
        VERSION | {"back": 2},
        VERSION | {"back": 0},
        {"type": "choose", "back": 1, "version": -1},
        {"type": "batch", "records": [{"type": "batch", "records": []}]},
        [1],
        b"torn",
    ],
    ids=lambda line: repr(line)[:70],
)
def test_a_line_that_makes_no_sense_costs_itself_and_not_the_conversation(tmp_path, line, caplog):
    path = old(tmp_path, QUESTION, ANSWER, line, QUESTION)
    assert taken(tmp_path, path).messages == (*READ, READ[0])
    assert [record.message for record in caplog.records] == [
        "20250101-a.jsonl is damaged: 1 lines were left out"
    ]


JSON = st.recursive(
    st.sampled_from([None, True, False, "message", "keep", "user", ""]) | st.integers() | st.floats(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3),
    max_leaves=5,
)
KEYS = [
    "at", "role", "content", "count", "back", "version", "numbers", "reasoning_tokens", "pair", "system", "files",
]  # fmt: skip
KINDS = ["message", "keep", "settings", "version", "choose", "batch", "title"]
LINES = st.dictionaries(st.sampled_from([*KEYS, "records", "title"]), JSON).flatmap(
    lambda values: st.sampled_from(KINDS).map(lambda kind: {"type": kind, **values})
)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES))
def test_no_line_keeps_a_conversation_from_being_listed_read_and_exported(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("c")
    found = taken(folder, old(folder, QUESTION, *lines, QUESTION))
    to_markdown(found)
    for message in found.messages:
        assert message.role in ("user", "assistant")
        assert not message.versions or message.versions[message.version].content == message.content


@pytest.mark.parametrize(
    "more", [{"mood": "blue"}, {"versions": 5}, {"version": 7}, {"at": "noon"}, {"at": 10**400}]
)
def test_a_field_of_a_newer_version_costs_no_message(tmp_path, more):
    found = taken(tmp_path, old(tmp_path, ANSWER | {"numbers": NUMBERS | {"watts": 3}} | more))
    assert found.messages == (READ[1],)
    assert found.talked == (1.0 if "at" in more else 3.0)
