"""Conversations on a hybrid, whose state cannot step back: what is read, and what is drafted."""

import numpy as np
import pytest

import localspec
from localspec.events import Cycle, Started
from localspec.prompt.messages import Message
from tests.llama.rows import NEAR, logits_of, row_after

THINKING = (  # the reply is opened with a mark that no past turn has
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
OPENING = "<|im_start|>assistant\n<think>\n"


@pytest.fixture
def load(tiny_gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))

    def open_session(draft="lookup", **shape):
        usual = {"architecture": "qwen35", "layers": 4, "chat_template": THINKING, "seed": 3}
        shape = usual | {"vocab_size": 4096} | shape
        draft = draft if draft == "lookup" else tiny_gguf(**{**shape, **draft})
        return localspec.load(target=tiny_gguf(**shape), draft=draft, threads=1, context_length=2048)

    return open_session


@pytest.fixture
def session(load):
    with load() as loaded:
        yield loaded


def user(turn):
    return Message("user", f"{turn} tell me of the sea, the wind and the {'grey ' * turn}gulls")


def opening(session):
    return len(session.pair.vocabulary.tokenize(OPENING, parse_special=True))


def started(session, messages):
    """How the reply to these messages begins; it is written to its end."""
    first, *_ = list(session.stream(messages, temperature=0, max_tokens=24))
    assert isinstance(first, Started)
    return first


def talk(session, turns):
    """The messages of some turns, and the tokens of each prompt before it opens the reply."""
    messages, history = [], []
    for turn in range(turns):
        messages.append(user(turn))
        history.append(started(session, messages).prompt_tokens - opening(session))
        messages.append(Message("assistant", f"answer {turn}"))
    return messages, history


def test_a_turn_reads_its_message_and_the_reply_before_it(session):
    messages, history = talk(session, 4)
    for _ in range(3):
        messages += [user(len(history)), Message("assistant", "answer")]
        first = started(session, messages[:-1])
        assert first.reused_tokens == history[-1]
        history.append(first.prompt_tokens - opening(session))


def test_another_conversation_with_the_same_instructions_reads_them_once(session):
    system = Message("system", "Mind the gap and the grey gulls. " * 60)
    whole = started(session, [system, user(0)]).prompt_tokens
    other = started(session, [system, user(3)])
    unread = len(session.pair.vocabulary.tokenize(user(0).content, parse_special=True)) + opening(session)
    assert 256 < whole - unread - 20 <= other.reused_tokens < whole - opening(session)


def test_an_edited_message_reads_itself_and_the_reply_before_it(session):
    messages, history = talk(session, 5)
    for turn in (4, 2, 1):  # each cuts off the turns behind it
        edited = [*messages[: 2 * turn], Message("user", f"no, {turn} tell me nothing")]
        assert started(session, edited).reused_tokens == history[turn - 1]


@pytest.mark.parametrize(("draft", "accepted"), [({"noise": 0.05}, 30), ({"architecture": "mamba"}, 0)])
def test_drafts_of_a_recurrent_model_for_a_hybrid_change_nothing(load, draft, accepted):
    with load(draft) as session:
        plain = session.complete("the sea and the wind", temperature=0, max_tokens=120, speculate=False)
        fast = session.complete("the sea and the wind", temperature=0, max_tokens=120, depth=3)
        assert fast.tokens == plain.tokens
        assert fast.stats.drafted > fast.stats.accepted >= accepted


def test_copied_drafts_on_a_hybrid(load, monkeypatch):
    """What a random model writes is no text that comes back as the same tokens, so these are handed in."""
    options = {"temperature": 0, "max_tokens": 120, "depth": 3}
    with load() as session:
        first = session.complete("the sea and the wind", **options)
        vocabulary = session.pair.vocabulary
        tokenize = vocabulary.tokenize
        expected = {"the same": list(first.tokens)}
        monkeypatch.setattr(
            vocabulary, "tokenize", lambda text, **how: expected.get(text) or tokenize(text, **how)
        )
        again = session.complete("the sea and the wind", prediction="the same", **options)
    assert again.tokens == first.tokens
    assert again.stats.from_prediction > 60
    assert again.stats.cycles < 60


def test_no_proposal_is_longer_than_the_state_can_step_back(load):
    with load({"noise": 0.05}) as session:
        events = list(
            session.stream_complete("the sea and the wind " * 6, depth=8, max_tokens=60, temperature=0)
        )
        cycles = [event for event in events if isinstance(event, Cycle)]
        assert max(cycle.width for cycle in cycles) == 4


def test_a_hybrid_draft_holds_the_text_and_nothing_else_after_each_cycle(load):
    with load({"noise": 0.3}) as session:
        target, draft = session.pair.target, session.pair.drafters[0].decoder
        for event in session.stream_complete(
            "the sea and the wind " * 6, depth=3, max_tokens=60, temperature=0
        ):
            if isinstance(event, Cycle):
                assert draft.tokens == target.tokens[: draft.length]
        held = list(draft.tokens)
        again = logits_of(draft.decode([9], 1).rows[0])
        assert np.abs(again - row_after(draft, [*held, 9])).max() < NEAR
