"""A stream of every interface holds the reply that the whole answer has: reasoning, text and calls, in this order."""

import json

import pytest

from localspec.engine.messages import Answer, LoadPair
from localspec.events import Finished, FinishReason, Kind, Origin, Piece, Reply, Source, Stats, ToolCall
from localspec.serve import http
from localspec.serve.anthropic import MessageWriter
from localspec.serve.ollama import LineWriter
from localspec.serve.openai import ChatWriter
from localspec.serve.pairs import Chosen
from localspec.serve.replies import Asked, Done
from localspec.serve.responses import ResponseWriter

ASKED = Asked(Chosen("demo", LoadPair("demo")), (Answer(0, text="a"),), {}, stream=True)
CALLS = (ToolCall("f", {"a": 'x "y"', "b": [1, {}]}, "id0000001"), ToolCall("g", {}, "id0000002"))
REPLY = Reply("Let me see.", "hm\nso", (1, 2), 0, FinishReason.STOP, Stats(), CALLS)
WRITERS = {
    "chat": lambda: ChatWriter(ASKED, False),
    "responses": lambda: ResponseWriter("demo"),
    "anthropic": lambda: MessageWriter("demo", ()),
    "ollama": lambda: LineWriter("demo", "message"),
}


def piece(text, kind, call=None):
    return Piece(text, kind, Origin.PLAIN, Source.PLAIN, call)


def pieces(calls):
    """Each part in two pieces; a call begins with its name and id."""
    for kind, text in ((Kind.REASONING, REPLY.reasoning), (Kind.ANSWER, REPLY.text)):
        yield from (piece(text[:3], kind), piece(text[3:], kind))
    for call in calls:
        text = json.dumps(call.arguments)
        yield piece("", Kind.TOOL_CALL, ToolCall(call.name, {}, call.id))
        yield from (piece(text[:3], Kind.TOOL_CALL), piece(text[3:], Kind.TOOL_CALL))


class Told:
    """Replies that are there already."""

    def __init__(self, calls, reply):
        self._reports = [*pieces(calls), Finished(reply)]
        self.asked, self.finished = ASKED, {0: Done(reply, ())}
        self.done = [self.finished[0]]

    @property
    def complete(self):
        return not self._reports

    async def next(self, timeout_seconds):
        return 0, self._reports.pop(0)


async def streamed(name, calls=CALLS, reply=REPLY):
    stream = http.ReplyStream(Told(calls, reply), None, WRITERS[name]())
    lines = b"".join([chunk async for chunk in stream.chunks()]).decode().splitlines()
    lines = [line.removeprefix("data: ") for line in lines if line and not line.startswith("event: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def of_chat(chunks):
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = {}
    for told in (call for delta in deltas for call in delta.get("tool_calls", ())):
        begun = {"id": told.get("id"), "name": told["function"].get("name"), "text": ""}
        found = calls.setdefault(told["index"], begun)
        found["text"] += told["function"]["arguments"]
    texts = ["".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")]
    return (*texts, [(c["id"], c["name"], json.loads(c["text"])) for c in calls.values()])


def of_responses(events):
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    grown = "".join(
        event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"
    )
    found = [item for item in items if item["type"] == "function_call"]
    assert grown == "".join(item["arguments"] for item in found)
    texts = [item["content"][0]["text"] for item in items if item["type"] != "function_call"]
    return (*texts, [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in found])


def of_anthropic(events):
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == list(range(len(blocks)))
    texts = [""] * len(blocks)
    for event in (event for event in events if event["type"] == "content_block_delta"):
        delta = event["delta"]
        texts[event["index"]] += delta.get("thinking") or delta.get("text") or delta.get("partial_json") or ""
    assert [block["type"] for block in blocks[:2]] == ["thinking", "text"]
    calls = zip(blocks[2:], texts[2:], strict=True)
    return (*texts[:2], [(block["id"], block["name"], json.loads(text)) for block, text in calls])


def of_ollama(lines):
    said = [line["message"] for line in lines]
    texts = ["".join(message.get(name, "") for message in said) for name in ("thinking", "content")]
    calls = [call["function"] for message in said for call in message.get("tool_calls", ())]
    ids = [call.id for call in CALLS]  # its form has none
    return (*texts, [(i, c["name"], c["arguments"]) for i, c in zip(ids, calls, strict=True)])


READERS = {"chat": of_chat, "responses": of_responses, "anthropic": of_anthropic, "ollama": of_ollama}


@pytest.mark.parametrize("name", WRITERS)
async def test_a_stream_holds_the_whole_reply(name):
    reasoning, text, calls = READERS[name](await streamed(name))
    assert (reasoning, text) == (REPLY.reasoning, REPLY.text)
    assert calls == [(call.id, call.name, call.arguments) for call in CALLS]


@pytest.mark.parametrize("name", WRITERS)
def test_a_whole_answer_holds_it_too(name):
    written = json.dumps(WRITERS[name]().whole([Done(REPLY, ())]))
    for text in (REPLY.reasoning, REPLY.text, *(call.name for call in CALLS)):
        assert json.dumps(text) in written


@pytest.mark.parametrize("name", ["chat", "responses", "anthropic"])
async def test_a_call_that_is_cut_begins_and_is_none_of_the_finished_ones(name):
    cut = Reply("", "", (1,), 0, FinishReason.LENGTH, Stats())
    events = await streamed(name, [ToolCall("f", {"a": 1}, "id0000009")], cut)
    assert "id0000009" in json.dumps(events)
    if name == "responses":
        assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]
    if name == "chat":
        assert events[-1]["choices"][0]["finish_reason"] == "length"
    if name == "anthropic":
        assert events[-2]["delta"]["stop_reason"] == "max_tokens"
