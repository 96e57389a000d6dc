"""Calls in every model's own words, through every interface: the target writes a plan, the requests are real."""

import asyncio
import json

import httpx
import pytest
from starlette.applications import Starlette

from localspec.chat.session import Session
from localspec.engine.messages import Generate, LoadPair
from localspec.engine.requests import ready, reply
from localspec.models.registry import named
from localspec.sampler.sampling import Sampling
from localspec.serve.jobs import Jobs
from localspec.serve.replies import Names, Pairs
from localspec.serve.server import routes_of
from tests.exact_engine import ExactContext, engine_of
from tests.prompt.carried import TEMPLATES
from tests.structure.test_forms import ByteVocabulary

MODELS = (
    "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.2-3B-Instruct", "Qwen3.5-4B", "GLM-4.6", "deepseek-ai-DeepSeek-V3.2",
    "openai-gpt-oss-120b", "google-gemma-4-31B-it", "LFM2.5-8B-A1B", "MiniMax-M2", "google-gemma-2-2b-it",
)  # fmt: skip
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
ARGUMENTS = {"city": "Oslo", "days": 2}
ASK = {"role": "user", "content": "Do I need an umbrella?"}
FENCED = '```json\n{\n  "name": "get_weather",\n  "arguments": {"city": "Oslo", "days": 2}\n}\n```'
THOUGHTS, RESULT, ANSWER = "They ask for weather.", '{"sky": "rain"}', "Bring one."


class Plan(ExactContext):
    """Writes the bytes of `text` after a prompt of `start` tokens, and ends."""

    start, text = 0, b""

    def row(self):
        row = super().row()
        at = len(self.cache) - self.start
        row[self.text[at] if at < len(self.text) else ByteVocabulary.eos] += 1000
        return row


class Engine:
    """The engine's side of the queue; keeps the prompts that it was asked to answer."""

    pid = 1

    def __init__(self, name, fenced=False):
        """`fenced`: whether the call is JSON in a fence instead of the model's own form."""
        self._fenced = fenced
        self._plan = Plan(1, vocabulary=ByteVocabulary().size, capacity=30_000)
        self.session = Session(
            engine_of(ByteVocabulary(), TEMPLATES[name], self._plan, None, sampling=Sampling(temperature=0.0))
        )
        self.prompts, self._reports = [], [(0, ready(self.session, 0.1))]
        self.on_report = lambda: None
        self._called = False

    def send(self, request):
        if isinstance(request, Generate):
            prompt = self.session.prompt_of(request.messages, **request.options)
            self._plan.start, self._plan.text = len(prompt.tokens), self._reply(prompt.text).encode()
            self.prompts.append(prompt.text)
            reports = []
            reply(self.session, request, reports.append, lambda: False)
            self._reports += [(request.serial, report) for report in reports]
        asyncio.get_running_loop().call_soon(self.on_report)

    def _reply(self, prompt):
        """A call in the model's own form after some reasoning, then an answer."""
        template = self.session.pair.template
        style = template.thinking_style(prompt)
        self.reasoned = style is not None and style.opened
        close = next(m for m, kind in style.markers.items() if kind == "answer") if self.reasoned else ""
        written = template.tool_call_format.written([("get_weather", ARGUMENTS)])
        written = FENCED if self._fenced else written
        text, self._called = (ANSWER if self._called else written), True
        return f"{THOUGHTS}{close}{text}" if self.reasoned else text

    def drain_numbered(self):
        reports, self._reports = self._reports, []
        return reports


def of_chat(body):
    message = body["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (message["content"], body["choices"][0]["finish_reason"]) == (None, "tool_calls")
    kept = {key: message[key] for key in ("role", "content", "tool_calls")}
    back = [ASK, kept, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
    return call["function"]["name"], json.loads(call["function"]["arguments"]), {"messages": back}


def of_responses(body):
    (call,) = (item for item in body["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    return call["name"], json.loads(call["arguments"]), {"input": [ASK, call, output]}


def of_anthropic(body):
    (use,) = (block for block in body["content"] if block["type"] == "tool_use")
    assert body["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": RESULT}
    back = [ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return use["name"], use["input"], {"messages": back}


def of_ollama(body):
    (call,) = body["message"]["tool_calls"]
    back = [ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]
    back += [{"role": "tool", "tool_name": "get_weather", "content": RESULT}]
    return call["function"]["name"], call["function"]["arguments"], {"messages": back}


INTERFACES = {
    "/v1/chat/completions": (of_chat, {"messages": [ASK], "tools": [TOOL]}),
    "/v1/responses": (of_responses, {"input": [ASK], "tools": [{"type": "function", **FUNCTION}]}),
    "/v1/messages": (
        of_anthropic,
        {
            "messages": [ASK],
            "max_tokens": 2000,
            "thinking": {"type": "enabled"},
            "tools": [{"name": "get_weather", "description": "The weather.", "input_schema": PARAMETERS}],
        },
    ),
    "/api/chat": (of_ollama, {"messages": [ASK], "tools": [TOOL], "stream": False}),
}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, "/v1/chat/completions") for name in MODELS),
        *((name, path) for name in ("Qwen3.5-4B", "openai-gpt-oss-120b") for path in list(INTERFACES)[1:]),
    ],
)
async def test_a_call_comes_and_its_result_goes_back(name, path):
    engine, (reader, body) = Engine(name), INTERFACES[path]
    jobs = Jobs(engine, LoadPair(named("demo")))
    app = Starlette(routes=routes_of(jobs, Pairs(jobs, Names(any_model=True))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        first = (await client.post(path, json=body)).json()
        called, arguments, back = reader(first)
        assert (called, arguments) == ("get_weather", ARGUMENTS)
        second = (await client.post(path, json={**body, **back})).json()
    assert ANSWER in json.dumps(second)
    _, answered = engine.prompts
    template = engine.session.pair.template
    assert template.tool_call_format.native == (name != "google-gemma-2-2b-it")
    places = [answered.index(text) for text in (ASK["content"], "Oslo", "sky")]
    assert places == sorted(places)
    assert (THOUGHTS in answered) == engine.reasoned  # clients leave it out


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen3.5-4B", "openai-gpt-oss-120b"])
@pytest.mark.parametrize("path", INTERFACES)
async def test_a_call_in_a_fence_is_a_call_whole_and_streamed(name, path):
    reader, body = INTERFACES[path]
    texts = []
    for stream in (False, True):
        jobs = Jobs(Engine(name, fenced=True), LoadPair(named("demo")))
        app = Starlette(routes=routes_of(jobs, Pairs(jobs, Names(any_model=True))))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            texts.append((await client.post(path, json={**body, "stream": stream})).text)
    assert reader(json.loads(texts[0]))[:2] == ("get_weather", ARGUMENTS)
    for text in texts:
        assert "get_weather" in text
        assert "Oslo" in text
        assert "```" not in text
