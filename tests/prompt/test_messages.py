import base64

import pytest

from localspec.errors import BadSetting
from localspec.events import FinishReason, Reply, Stats, ToolCall
from localspec.prompt.messages import Message, as_messages, with_reply

PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
EMPTY = {"function": {"name": "f", "arguments": ""}}
ANSWERED = Message("assistant", "4", "2+2")
SERVERS = {"role": "assistant", "content": "4", "reasoning_content": "2+2", "tool_calls": None}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("hi", [Message("user", "hi")]),
        (
            [{"role": "system", "content": "be"}, Message("user", "hi")],
            [Message("system", "be"), Message("user", "hi")],
        ),
        ([{"role": "user", "content": PARTS}], [Message("user", "one\ntwo")]),
        ([SERVERS], [ANSWERED]),
        ([SERVERS, {"role": "assistant", "content": None}], [ANSWERED, Message("assistant", "")]),
        (
            [{"role": "assistant", "tool_calls": [EMPTY]}],
            [Message("assistant", "", "", (ToolCall("f", {}, ""),))],
        ),
        ("a\ud83d\ude00b\udcffc", [Message("user", "a😀b\ufffdc")]),  # halves of characters
    ],
    ids=str,
)
def test_every_usual_form_of_messages_is_read(given, messages):
    assert as_messages(given) == tuple(messages)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("", "the prompt is empty"),
        (" \n", "the prompt is empty"),
        ([], "list of messages is empty"),
        ({"role": "user", "content": "hi"}, "of type dict, not a text"),
        (7, "of type int, not a text"),
        (["hi"], "message 1 is of type str"),
        ([{"role": "robot", "content": "hi"}], "the role of message 1 cannot be 'robot'"),
        ([{"content": "hi"}], "the role of message 1 cannot be ''"),
        ([{"role": "user", "content": "hi", "mood": "good"}], "unknown key: 'mood'"),
        ([{"role": "system"}, {"role": "user", "content": ""}], "every message is empty"),
        ([{"role": "user", "content": 7}], "of type int"),
        ([{"role": "user", "content": b"hi"}], "of type bytes"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "an image has no data"),
        ([{"role": "user", "content": [{"type": "text"}]}], "neither text nor an image: text"),
        ([{"role": ["user"], "content": "hi"}], "the role of message 1 cannot be ['user']"),
        ([{"role": "assistant", "content": "hi", "reasoning": 7}], "must be texts"),
    ],
)
def test_anything_else_is_refused_with_a_hint(given, complaint):
    with pytest.raises(BadSetting) as caught:
        as_messages(given)
    assert complaint in str(caught.value)
    assert caught.value.hint


def test_history_keeps_reasoning_only_where_it_goes_on_with_the_result_of_a_call():
    def reply(text, *calls):
        reply = Reply(text, "thoughts", (1,), 0, FinishReason.STOP, Stats(), calls)
        return with_reply((Message("user", "q"),), reply)[-1]

    call = ToolCall("add", {"a": 2}, "1")
    assert reply("4") == Message("assistant", "4", "")
    assert reply(" ", call) == Message("assistant", "", "thoughts", (call,))
    assert reply("\n").content == "(no answer)"


def test_parts_that_are_not_read_are_left_out_with_a_notice_but_not_a_damaged_image_of_the_question():
    webp = {"type": "image", "image": base64.b64encode(b"RIFF....WEBP").decode()}
    away = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    paper = {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
    }
    seen = {"role": "user", "content": [{"type": "text", "text": "See"}, webp, away, paper]}
    called = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    back = [called, {"role": "tool", "content": "read", "tool_call_id": "a"}]
    for after in ([{"role": "assistant", "content": "No."}, {"role": "user", "content": "So?"}], []):
        notices = []
        first = as_messages([*([] if after else back), seen, *after], left_out=notices)[0 if after else -1]
        assert first.content.startswith("See[an image that this model cannot read][an image")
        assert first.content.endswith("[a file that this model cannot read]")
        assert ["WebP" in notices[0], "other servers" in notices[1], '"file"' in notices[2]] == [True] * 3
    with pytest.raises(BadSetting, match="WebP"):
        as_messages([seen], left_out=[])
    with pytest.raises(BadSetting, match="neither text nor an image"):
        as_messages([{"role": "user", "content": [paper]}])
