import pytest

from localspec.chat.messages import Message, as_history, as_messages
from localspec.errors import BadSetting
from localspec.events import FinishReason, Reply, Stats, ToolCall


def test_a_prompt_is_a_user_message():
    assert as_messages("hi") == (Message("user", "hi"),)


def test_dictionaries_messages_and_parts_mean_the_same():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert as_messages([{"role": "system", "content": "be"}, Message("user", "hi")]) == (
        Message("system", "be"),
        Message("user", "hi"),
    )
    assert as_messages([{"role": "user", "content": parts}]) == (Message("user", "one\ntwo"),)


def test_what_servers_add_is_understood():
    given = {"role": "assistant", "content": "4", "reasoning_content": "2+2", "tool_calls": None}
    assert as_messages([given]) == (Message("assistant", "4", "2+2"),)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("", "the prompt is empty"),
        (" \n", "the prompt is empty"),
        ([], "list of messages is empty"),
        ({"role": "user", "content": "hi"}, "not of type dict"),
        (7, "not of type int"),
        (["hi"], "message 1 is of type str"),
        ([{"role": "robot", "content": "hi"}], "role 'robot'"),
        ([{"content": "hi"}], "role ''"),
        ([{"role": "user", "content": "hi", "mood": "good"}], "unknown key: 'mood'"),
        ([{"role": "user", "content": "hi"}, {"role": "user", "content": ""}], "message 2 is empty"),
        ([{"role": "user", "content": 7}], "of type int"),
        ([{"role": "user", "content": b"hi"}], "of type bytes"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "not text: image_url"),
        ([{"role": "user", "content": [{"type": "text"}]}], "not text: text"),
        ([{"role": ["user"], "content": "hi"}], "role ['user']"),
        ([{"role": "assistant", "content": "hi", "reasoning": 7}], "must be texts"),
    ],
)
def test_anything_else_is_refused_with_a_hint(given, complaint):
    with pytest.raises(BadSetting) as caught:
        as_messages(given)
    assert complaint in str(caught.value)
    assert caught.value.hint


def test_an_assistant_may_have_said_nothing():
    assert as_messages([{"role": "assistant", "content": None}]) == (Message("assistant", ""),)


def test_half_characters_are_made_whole():
    assert as_messages("a\ud83d\ude00b\udcffc") == (Message("user", "a😀b\ufffdc"),)


def reply(text, *calls):
    return Reply(text, "thoughts", (1,), 0, FinishReason.STOP, Stats(), calls)


def test_history_leaves_reasoning_out():
    assert as_history(reply("4")) == Message("assistant", "4", "")


def test_history_keeps_the_reasoning_that_led_to_a_call_because_it_goes_on_with_the_result():
    call = ToolCall("add", {"a": 2}, "1")
    assert as_history(reply(" ", call)) == Message("assistant", "", "thoughts", (call,))


def test_history_has_something_to_say_for_a_reply_without_an_answer():
    assert as_history(reply("\n")).content == "(no answer)"
