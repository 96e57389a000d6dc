"""Whatever happened to a session before, a greedy reply is what a fresh cache says to the same prompt."""

import itertools
from random import Random

import pytest

import localspec
from localspec.errors import ContextFull
from localspec.events import Finished
from localspec.prompt.messages import Message

pytestmark = pytest.mark.nightly

QUESTIONS = (
    "Tell me a story about a ferry.",
    "And then?",
    "List three cities as JSON.",
    "What is 12 times 9?",
)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OPERATIONS = ("run", "run", "again", "edit", "cancel", "leave", "list", "complete", "schema", "tools")
OPERATIONS += ("ahead", "ahead")
STEPS = 40
NARROW, WIDE = 8, 128  # from 64 on llama.cpp computes attention another way


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.mktemp("home")))
        with (
            localspec.load("demo", context_length=512) as walked,
            localspec.load("demo", context_length=512) as fresh,
        ):
            yield walked, fresh


@pytest.mark.parametrize("chunk", [NARROW, WIDE])
def test_a_random_walk_of_operations_changes_no_greedy_reply(sessions, chunk, monkeypatch):
    walked, fresh = sessions
    for session in sessions:
        monkeypatch.setattr(session.pair.target, "chunk", chunk)
    random, checked = Random(chunk), 0
    walked.reset()
    for step in range(STEPS):
        operation = random.choice(OPERATIONS)
        try:
            reply = operate(walked, operation, random)
        except ContextFull:  # a list that is too long for 512 tokens
            walked.reset()
            continue
        if reply is None or not reply.tokens:
            continue
        held, tokens = list(walked.pair.target.tokens), list(reply.tokens)
        prompt = held[: reply.stats.prompt_tokens]
        assert held[len(prompt) :] in (tokens, tokens[:-1]), f"{operation} at step {step}"
        if operation not in ("schema", "tools"):
            checked += 1
            fresh.pair.target.rollback(0)
            greedy = {"temperature": 0, "max_tokens": len(tokens), "speculate": False}
            plain = list(fresh.complete(prompt, **greedy).tokens)
            assert tokens == plain, f"{operation} at step {step}"
    assert checked > STEPS / 3


def operate(session, operation, random):
    """One operation; its reply, if it has one that was not cut by leaving the stream."""
    asked = random.choice(QUESTIONS)
    options = {"temperature": 0, "max_tokens": random.choice((5, 20, 60))}
    if random.random() < 0.3:
        options["depth"] = random.choice((0, 1, 3, 8))
    questions = [i for i, message in enumerate(session.messages) if message.role == "user"]
    match operation:
        case "again" if questions:
            return session.run(session.messages[: questions[-1] + 1], **options)
        case "edit" if questions:
            earlier = session.messages[: random.choice(questions)]
            return session.run([*earlier, {"role": "user", "content": asked}], **options)
        case "list":
            earlier = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Yes."}]
            return session.run([*earlier, {"role": "user", "content": asked}], **options)
        case "ahead":  # what is typed is read ahead, until a random moment
            looks, last = itertools.count(), random.randrange(1, 40)
            typed = [*session.messages, Message("user", asked[: random.randrange(4, 20)])]
            session.read_ahead(lambda: next(looks) >= last, typed, **options)
            return session.run(asked, **options)
        case "complete":
            return session.complete("def add(a, b):\n    ", **options)
        case "schema":
            return session.run(asked, json_schema=SCHEMA, **options)
        case "tools":
            return session.run(asked, tools=[TOOL], **options)
        case "cancel" | "leave":
            last = random.randrange(1, 12)
            for number, event in enumerate(stream := session.stream(asked, **options), 1):
                if number == last and operation == "leave":
                    stream.close()
                elif number == last:
                    session.cancel()
                if isinstance(event, Finished):
                    return event.reply
            return None
        case _:
            return session.run(asked, **options)
