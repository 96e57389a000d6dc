"""Many clients with several keys on one engine, and equal questions: nobody's reasoning goes to another key."""

import asyncio
import itertools
import json
from dataclasses import replace

import httpx
import pytest
from starlette.applications import Starlette

from localspec.chat.session import Session
from localspec.engine.messages import LoadPair
from localspec.engine.requests import PairRequests, ready
from localspec.models.registry import named
from localspec.prompt.fitting import Fitter
from localspec.prompt.messages import Message, digests
from localspec.prompt.tokens import Prompt
from localspec.sampler.sampling import Sampling
from localspec.serve.guard import Access, Guard
from localspec.serve.jobs import Jobs
from localspec.serve.replies import Names, Pairs
from localspec.serve.server import routes_of
from tests.exact_engine import engine_of
from tests.prompt.carried import TEMPLATES
from tests.serve.test_planted import ANSWER, INTERFACES, Engine, Plan
from tests.structure.test_forms import ByteVocabulary

KEYS = ("anna", "bert", "carl", "")
CALL = ("get_weather", {"city": "Oslo", "days": 2})


class Thinking(Engine):
    """The engine's side of the queue: every reply thinks a number of its own, and then does what all others do."""

    def __init__(self, template):
        self._plan = Plan(1, vocabulary=ByteVocabulary().size, capacity=60_000)
        pair = engine_of(ByteVocabulary(), template, self._plan, None, sampling=Sampling(temperature=0.0))
        self._handler = PairRequests()
        self._handler._session = session = Session(pair)
        self._reports, self._numbers = [(0, ready(session, 0.1))], itertools.count(1)
        self.on_report = lambda: None
        self.prompts = []  # each with the serial of its request
        self.thoughts = {}  # of each reply, by its serial
        self._serial, whole = 0, session._in_use.writer.reply

        def recorded(job):
            prompt = b"".join(map(ByteVocabulary().piece, job.prompt)).decode()
            self.prompts.append((self._serial, prompt))
            self._plan.start, self._plan.text = len(job.prompt), self._reply(prompt).encode()
            return whole(job)

        session._in_use.writer.reply = recorded

    def _reply(self, prompt):
        template = self._handler._session.pair.template
        markers = template.thinking_style(prompt).markers
        thought = self.thoughts[self._serial] = f"My thought is number {next(self._numbers):06}."
        written = ANSWER if "rain" in prompt else template.tool_call_format.written([CALL])
        return f"{thought}{next(mark for mark, kind in markers.items() if kind == 'answer')}{written}"

    def send(self, request):
        self._serial = getattr(request, "serial", 0)
        add = self._reports.append
        self._handler.perform(request, lambda report: add((request.serial, report)), lambda: False)
        asyncio.get_running_loop().call_soon(self.on_report)


async def crowd(engine, clients):
    """Each client asks, and sends the result of the call back; returns the keys of all replies, by their serial."""
    jobs = Jobs(engine, LoadPair(named("demo")))
    app = Starlette(routes=routes_of(jobs, Pairs(jobs, Names(any_model=True))))
    guard, keys = Guard(app, Access(), lambda *_: None), {}
    send = engine.send

    async def client(number):
        key, path = KEYS[number % len(KEYS)], list(INTERFACES)[number // len(KEYS) % len(INTERFACES)]
        reader, body = INTERFACES[path]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers
        ) as web:
            first = (await web.post(path, json=body)).json()
            for call in first.get("message", {}).get("tool_calls", ()):
                del call["id"]  # older clients of Ollama know none: only the key tells them apart
            back = {**body, **reader(first)[2]}
            assert ANSWER in json.dumps((await web.post(path, json=back)).json())

    def sent(request):
        keys[request.serial] = request.owner
        send(request)

    engine.send = sent
    await asyncio.gather(*map(client, range(clients)))
    return keys


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["Qwen3.5-4B", "MiniMax-M2"])
async def test_no_reasoning_of_a_key_is_in_a_prompt_of_another(name):
    clients = 40
    engine = Thinking(TEMPLATES[name])
    keys = await crowd(engine, clients)
    assert len(set(keys.values())) == len(KEYS)
    assert len(engine.prompts) == 2 * clients
    back = 0
    for serial, prompt in engine.prompts:
        for other, thought in engine.thoughts.items():
            if thought in prompt:
                assert keys[serial] == keys[other]
                back += 1
    assert back == clients  # each got its own, or an equal client's of its key


def test_a_cut_of_another_owner_or_of_other_tools_is_not_used():
    messages = tuple(Message("user", f"{number} " + "x" * 40) for number in range(40))

    def cut(beside, earlier=()):
        def encode(kept):
            text = "".join(message.content for message in kept)
            return Prompt(list(range(len(text))), text)

        return Fitter(encode, 1000, 10, beside=beside).fit(messages, trim=True, earlier=earlier).omission

    first = cut("anna")
    later = replace(
        first,
        index=first.index + 1,
        tokens=first.tokens + 1,
        digest=[*digests(messages[: first.index + 1], "anna")][-1],
    )
    assert cut("anna", [later]) == later
    assert cut("bert", [later]) == replace(first, digest=cut("bert").digest)
