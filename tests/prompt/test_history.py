"""Any history fits every template: nothing is refused or lost, the order stays, and so does the prefix."""

import json
import random
import re
from dataclasses import replace
from functools import cache

import pytest

from localspec.chat.constraints import PromptBuilder
from localspec.chat.request import request_from
from localspec.errors import BadSetting
from localspec.events import Notice, ToolCall
from localspec.prompt.history import Taken, fitted
from localspec.prompt.images import PLACE, Image
from localspec.prompt.messages import Message, are_continued, as_messages
from localspec.prompt.template import CHATML
from localspec.sampler.sampling import Sampling
from localspec.serve.openai import prompt_of
from tests.prompt.carried import QUICK, TEMPLATES, ready, tiered
from tests.prompt.character_vocabulary import CharacterVocabulary
from tests.prompt.conversations import ASK, TOOLS, says
from tests.prompt.histories import history, words_of
from tests.prompt.ordinary import MENDED, RECORDED, digest, prompts
from tests.structure.characters import scripted_session

REQUESTS = request_from({}, Sampling()), request_from({"tools": TOOLS}, Sampling())
TALK = [Message("user", "Hi."), Message("assistant", "Hi.")]
TURNS = [ASK, says("assistant", "Yes."), says("user", "And in Rome?")]


@cache
def builder_of(name):
    return PromptBuilder(CharacterVocabulary(["<s>", "</s>"]), ready(name))


def is_notice(event):
    return isinstance(event, Notice)


def prompt(name, messages, request=REQUESTS[0]):
    """The prompt as a reply has it; CharacterVocabulary would spend most of the time."""
    builder, given = builder_of(name), prompt_of(messages).messages
    rendered, variables, _ = builder._rendered(replace(request, messages=given))
    variables["add_generation_prompt"] = not are_continued(given)
    return ready(name).render(rendered, arguments=variables)


def without_thoughts(text):
    """The text without the empty reasoning that many templates write into the newest answer only."""
    return re.sub(r"<think>|</think>|\s+", "", text)


def begins_alike(name, messages, count, request):
    """Whether the prompt of the first messages begins that of all, up to its last word."""
    part, words = prompt(name, messages[:count], request), words_of(messages[:count])
    end = max((part.rfind(word) + len(word) for word in words), default=0)
    return without_thoughts(prompt(name, messages, request)).startswith(without_thoughts(part[:end]))


def moved(words, text, messages):
    """The words that are not in their order; results of one message may come in the order of its calls."""
    rounds = {}  # by word: the number of its round of calls
    for number, message in enumerate(messages):
        if message.get("tool_calls") or message["role"] == "tool":
            begins = message.get("tool_calls") and not (number and messages[number - 1].get("tool_calls"))
            begun = rounds["last"] = number if begins else rounds.get("last", number)
            rounds |= dict.fromkeys(words_of([message]), begun)
        else:
            rounds.pop("last", None)
    written = sorted(words, key=text.find)
    pairs = zip(words, written, strict=True)
    return [b for a, b in pairs if a != b and (a not in rounds or rounds[a] != rounds.get(b))]


def check(name, seeds):
    for seed in seeds:
        messages, request = history(seed), REQUESTS[seed % 2]
        text, words = prompt(name, messages, request), words_of(messages)
        assert [word for word in words if text.count(word) != 1] == [], (seed, messages)
        assert moved(words, text, messages) == [], (seed, messages)
        # Two templates write the tools before the newest question, so their prompts change behind the first one.
        if request is REQUESTS[1] and not begins_alike(name, [says("user", "w900x"), *TURNS[1:]], 1, request):
            continue
        # Many templates leave reasoning out behind the next answer, one a text beside a call with it.
        beside = (
            {"content"}
            if ready(name).taken(with_tools=True).beside & {"before", "after"} == {"after"}
            else set()
        )
        for message in messages:
            for key in {"reasoning_content", *(beside if message.get("tool_calls") else ())} & {*message}:
                del message[key]
        for count in range(1, len(messages)):
            before, following = messages[:count], messages[count]
            asks = any(message.get("content") for message in before) and not before[-1].get("tool_calls")
            if asks and following["role"] != "tool":
                assert begins_alike(name, messages, count, request), (seed, count, messages)


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_a_random_history_fits(name):
    check(name, range(20))


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_many_random_histories_fit(name):
    check(name, range(2000))


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_an_ordinary_history_has_the_prompt_it_always_had(name):
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))[name].split()
    pairs = zip(prompts(name).items(), recorded, strict=True)
    assert {title for (title, text), before in pairs if digest(text) != before} == {*MENDED.get(name, ())}


def test_a_late_system_message_stays_in_its_place_and_names_its_role():
    messages = [*TURNS, says("developer", "Be brief.")]
    text = prompt("Qwen3.5-4B", messages)
    assert "user\nSystem message:\nBe brief.<|im_end|>" in text
    assert "system\nBe brief.<|im_end|>" in prompt("Qwen-Qwen2.5-7B-Instruct", messages)


def test_arguments_that_are_no_object_are_one_argument():
    calls = [{"id": "a", "function": {"name": "f", "arguments": given}} for given in ('{"a": 1', "null", [1])]
    read = as_messages([{"role": "assistant", "tool_calls": calls}])[0].tool_calls
    assert [(call.arguments, call.unreadable) for call in read] == [({}, '{"a": 1'), ({}, ""), ({}, "[1]")]
    for name in QUICK:
        assert "[1]" in prompt(name, [ASK, {"role": "assistant", "tool_calls": calls}])


def test_results_belong_to_calls_by_id_and_otherwise_by_place():
    def calling(*ids):
        return Message("assistant", "", tool_calls=tuple(ToolCall("f", {}, each) for each in ids))

    def result(call_id):
        return Message("tool", "x", tool_call_id=call_id)

    def ids(*messages, **how):
        found = fitted(messages, Taken(strays=True, **how)).messages
        return [m.tool_call_id or [call.id for call in m.tool_calls] for m in found if m.role != "user"]

    ask = Message("user", "q")
    assert ids(ask, calling("a", "b"), result("b"), result("a")) == [["a", "b"], "b", "a"]
    again = ids(ask, calling("a"), result("a"), calling("a"), result("a"))
    assert again == [["a"], "a", ["c00003000"], "c00003000"]
    assert ids(ask, calling("", ""), result(""), result("z"))[1:] == ["c00001000", "c00001001"]
    assert ids(ask, calling("a"), result("a"), result("a"))[2] == "c00003000"
    short, answered = ids(ask, calling("toolu_1"), result("toolu_1"), short_ids=True)
    assert short == [answered]
    assert len(answered) == 9


def test_calls_that_become_texts_are_named():
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    messages = [ASK, says("assistant", "", tool_calls=[call]), {**says("tool", "r"), "tool_call_id": "a"}]
    texts = [event.text for event in scripted_session("Sure.", CHATML).stream(messages) if is_notice(event)]
    assert next(text for text in texts if "calls of tools became texts" in text).endswith(": 1")


def test_one_notice_names_all_changes():
    session = scripted_session("Sure.", TEMPLATES["Qwen3.5-4B"])
    call = {"id": "a", "function": {"name": "f", "arguments": "{"}}
    messages = [ASK, says("assistant", "", tool_calls=[call]), says("system", "w"), says("user", "a|")]
    texts = [event.text for event in session.stream(messages) if is_notice(event)]
    (notice,) = [text for text in texts if "history" in text]
    assert "late system messages are messages of the user: 1" in notice
    assert "text as one argument: 1" in notice


@pytest.mark.parametrize("pairs", [frozenset(), Taken().pairs])
def test_a_history_as_long_as_a_body_allows_fits_in_one_step_a_message(pairs):
    """Fitting adds at most two turns for each message, and copies no text again for each one that it joins."""
    kinds = {
        "user": Message("user", "abc"),
        "system": Message("system", "abc"),
        "result": Message("tool", "abc", tool_call_id="a"),
        "call": Message("assistant", "abc", tool_calls=(ToolCall("f", {}, "a"),)),
        "answer": Message("assistant", "abc"),
    }
    for kind in kinds.values():
        found = fitted([*TALK, *[kind] * 5_000], Taken(pairs=pairs)).messages
        assert len(found) <= 6
        assert sum(message.content.count("abc") for message in found) == 5_000
    mixed = random.Random(1).choices([*kinds.values()], k=5_000)
    found = fitted(mixed, Taken(pairs=pairs)).messages
    assert len(found) <= 3 * len(mixed)


def test_an_image_of_an_earlier_message_is_left_out_where_no_image_is_read():
    builder, picture = builder_of("Qwen-Qwen2.5-7B-Instruct"), Image(b"png")

    def of(*messages):
        return replace(REQUESTS[0], messages=messages)

    seen = Message("user", PLACE + "Look.", images=(picture,))
    later = (seen, Message("assistant", "Yes."), Message("user", "And?"))
    made = builder.encode(of(*later))
    assert "[an image that this model cannot read]Look." in made.text
    assert "images of earlier messages were left out" in made.notice
    with pytest.raises(BadSetting, match="reads no images"):
        builder.encode(of(*later[1:], seen))
    called = Message("assistant", "", tool_calls=(ToolCall("f", {}, "a"),))
    result = Message("tool", PLACE, tool_call_id="a", images=(picture,))
    assert "that this model cannot read]" in builder.encode(of(later[2], called, result)).text
