"""The other spelling of a conversation's texts: escaped for calls and JSON, and without escapes for plain replies."""

import json

import pytest

from localspec.prompt.messages import as_messages
from localspec.prompt.spelling import KEPT, MOST, Spellings
from localspec.structure.tool_call_format import GENERIC, HERMES
from tests.prompt.character_vocabulary import CharacterVocabulary
from tests.structure.characters import session_of
from tests.structure.test_tools import CODER, NOW

CODE = 'def area(shape):\n    print("measured", shape)\n    return shape.width * shape.height\n'
ESCAPED = json.dumps(CODE)[1:-1]
RESULT = json.dumps({"path": "area.py", "text": CODE})
CALL = {"function": {"name": "write", "arguments": {"path": "area.py", "text": CODE}}}
ASKED = [{"role": "user", "content": CODE}]
CALLED = [{"role": "user", "content": "write"}, {"role": "assistant", "tool_calls": [CALL]}]
READ = [*CALLED[:1], {"role": "tool", "content": RESULT}]


class Counting(CharacterVocabulary):
    """A vocabulary that records the texts it has tokenised."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def tokenize(self, text, **how):
        self.texts.append(text)
        return super().tokenize(text, **how)


def spelled(messages, prompt, reply, spellings=None):
    found = (spellings or Spellings(Counting())).of(as_messages(messages), prompt, reply)
    return ["".join(map(chr, tokens)) for tokens in found]


@pytest.mark.parametrize(
    ("messages", "prompt", "reply", "expected"),
    [
        (ASKED, HERMES, HERMES, [ESCAPED]),
        (ASKED, GENERIC, None, []),
        (ASKED, CODER, CODER, []),  # its calls have no escapes
        (ASKED, CODER, GENERIC, [ESCAPED]),  # tools, and an answer with a schema
        (CALLED, HERMES, HERMES, [CODE]),
        (CALLED, CODER, CODER, []),
        (READ, HERMES, None, [CODE]),
        (READ, CODER, CODER, [CODE]),
        (READ, HERMES, HERMES, [CODE, json.dumps(RESULT)[1:-1]]),  # a call may write the result as a file
        ([{"role": "user", "content": f"Print it: {RESULT} as it is"}], HERMES, None, [CODE]),
    ],
)
def test_a_text_has_the_spelling_that_the_prompt_lacks_and_the_reply_may_have(
    messages, prompt, reply, expected
):
    assert spelled(messages, prompt, reply) == expected


@pytest.mark.parametrize("damaged", ['"\\u12"', '"\\x', '\\"', '"a\\nb\n"', '"\\n' + '\\"' * 100_000])
def test_texts_that_only_look_like_strings_give_nothing(damaged):
    content = damaged * 40 if len(damaged) < 99 else damaged
    assert spelled([{"role": "user", "content": content}], HERMES, None) == []


def test_each_text_is_tokenised_once_in_all_turns_of_several_conversations():
    vocabulary, turns = Counting(), [{"role": "user", "content": f"{n}\n{CODE}"} for n in range(6)]
    spellings = Spellings(vocabulary)
    for end in range(1, 7):
        assert len(spelled(turns[:end], HERMES, HERMES, spellings)) == end
        spelled(CALLED, HERMES, HERMES, spellings)
    assert len(vocabulary.texts) == len(set(vocabulary.texts)) == 7


def test_texts_of_one_reply_and_kept_texts_are_bounded_and_the_newest_stay():
    vocabulary, part = Counting(), MOST // 4
    spellings = Spellings(vocabulary)
    turns = [{"role": "user", "content": f"{n:03}\n" + "a" * (part - 5)} for n in range(40)]
    found = spelled([*turns[:5], {"role": "user", "content": "\n" * MOST}], HERMES, HERMES, spellings)
    assert [text[:3] for text in found] == ["004", "003", "002", "001"]
    for turn in turns:
        spelled([turn], HERMES, HERMES, spellings)
    assert sum(map(len, spellings._known)) == KEPT
    asked = len(vocabulary.texts)
    spelled(turns[-4:], HERMES, HERMES, spellings)
    assert len(vocabulary.texts) == asked


def given_to(monkeypatch, session):
    """Return a list that gets the other spellings of each reply as texts."""
    found, strategy = [], session.pair.drafting.strategy

    def recorded(rule, request, predicted, spelled):
        found.append(["".join(session.pair.vocabulary.text(t) for t in tokens) for tokens in spelled])
        return strategy(rule, request, predicted, spelled)

    monkeypatch.setattr(session.pair.drafting, "strategy", recorded)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"tools": [NOW]}, [ESCAPED]),
        ({"tools": [NOW], "tool_choice": "none"}, []),
        ({"json_schema": {"type": "string"}}, [ESCAPED]),
    ],
)
def test_a_session_gives_the_other_spellings_to_the_drafter(monkeypatch, options, expected):
    session = session_of()
    found = given_to(monkeypatch, session)
    session.run(CODE, max_tokens=2, **options)
    assert found == [expected]


def test_a_raw_text_that_is_continued_with_a_schema_has_them_too(monkeypatch):
    session = session_of()
    found = given_to(monkeypatch, session)
    session.complete(CODE, max_tokens=2, json_schema={"type": "string"})
    session.complete(CODE, max_tokens=2)
    assert found == [[ESCAPED], []]
