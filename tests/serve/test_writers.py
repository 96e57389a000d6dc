"""A stream of every interface holds the reply that the whole answer has: reasoning, text and calls, in this order."""

import json

import pytest

from localspec.engine.messages import Generate, LoadPair
from localspec.events import Finished, FinishReason, Kind, Origin, Piece, Reply, Source, Stats, ToolCall
from localspec.models.registry import named
from localspec.serve import http
from localspec.serve.anthropic import MessageWriter
from localspec.serve.ollama import LineWriter
from localspec.serve.openai import ChatWriter
from localspec.serve.replies import Chosen, ReplyRequest, ServedReply, fold
from localspec.serve.responses import ResponseWriter

ASKED = ReplyRequest(Chosen("demo", LoadPair(named("demo"))), (Generate(0, continued="a"),), stream=True)
CALLS = (ToolCall("f", {"a": 'x "y"', "b": [1, {}]}, "id0000001"), ToolCall("g", {}, "id0000002"))
REPLY = Reply("Let me see.", "hm\nso", (1, 2), 0, FinishReason.STOP, Stats(), CALLS)
WRITERS = {
    "/v1/chat/completions": lambda: ChatWriter(ASKED),
    "/v1/responses": lambda: ResponseWriter("demo"),
    "/v1/messages": lambda: MessageWriter("demo", ()),
    "/api/chat": lambda: LineWriter("demo", "message"),
}


def pieces():
    """Each part in two pieces; a call begins with its name and id."""
    calls = [(Kind.TOOL_CALL, json.dumps(call.arguments), ToolCall(call.name, {}, call.id)) for call in CALLS]
    for kind, text, call in (
        (Kind.REASONING, REPLY.reasoning, None),
        (Kind.ANSWER, REPLY.text, None),
        *calls,
    ):
        for part, begun in (("", call), (text[:3], None), (text[3:], None)):
            if part or begun:
                yield Piece(part, kind, Origin.PLAIN, Source.PLAIN, begun)


class PlannedReply:
    """Replies that are there already."""

    def __init__(self):
        self._reports, blocks = [*pieces(), Finished(REPLY)], []
        for piece in pieces():
            fold(blocks, piece)
        self.done = self.replies = [ServedReply(None, [], blocks, finished=REPLY)]
        self.asked = ASKED

    @property
    def complete(self):
        return not self._reports

    async def next(self, timeout_seconds):
        return 0, self._reports.pop(0)


@pytest.mark.parametrize("path", WRITERS)
async def test_a_stream_and_the_whole_answer_hold_the_reply(path):
    stream, (shown_in, folded) = http.ReplyStream(PlannedReply(), None, WRITERS[path]()), READERS[path]
    lines = lines_in(b"".join([chunk async for chunk in stream.chunks()]).decode())
    shown = shown_in(json.loads(json.dumps(WRITERS[path]().whole(PlannedReply().done))))
    assert shown == folded(lines)
    for text in (REPLY.reasoning, REPLY.text, *(call.name for call in CALLS)):
        assert json.dumps(text)[1:-1] in json.dumps(shown)
    if path == "/v1/responses":
        assert [line["sequence_number"] for line in lines] == list(range(len(lines)))
        items = [line["item"] for line in lines if line["type"] == "response.output_item.done"]
        assert items == lines[-1]["response"]["output"]


def lines_in(text):
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [json.loads(line) for line in lines if line[:1] == "{"]


TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
# The automatic depth of the demo pair is 0.
SETTINGS = {"seed": 7, "depth": 4, "messages": [{"role": "user", "content": "Weather in Oslo?"}]}
CALLING = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
BODIES = {
    "/v1/chat/completions": lambda n: {**SETTINGS, **CALLING, "max_tokens": n, "logprobs": True},
    "/v1/responses": lambda n: {
        "input": "Weather in Oslo?", "seed": 7, "depth": 4, "max_output_tokens": n, "tool_choice": "required",
        "tools": [{"type": "function", **TOOL}],
    },
    "/v1/messages": lambda n: {
        **SETTINGS, "max_tokens": n, "temperature": 0, "tool_choice": {"type": "any"},
        "tools": [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}],
    },
    "/api/chat": lambda n: {**SETTINGS, **CALLING, "options": {"num_predict": n, "seed": 7}},
    "/completion": lambda n: {"prompt": "Once", "seed": 7, "depth": 4, "n_predict": n, "n_probs": 1},
    "/v1/completions": lambda n: {"prompt": "Once", "seed": 7, "depth": 4, "max_tokens": n, "stop": [",", "."]},
}  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("path", BODIES)
def test_a_stream_folds_to_the_whole_answer_wherever_it_is_cut(path, http):
    kinds, (shown_in, folded) = set(), READERS[path]
    for tokens in (1, 5, 9, 12, *range(15, 40), 60):
        body = BODIES[path](tokens)
        whole = http.post(path, json={**body, "stream": False}).json()
        shown = shown_in(whole)
        assert shown == folded(lines_in(http.post(path, json={**body, "stream": True}).text)), tokens
        assert "tool_call>" not in str(shown)
        kinds.add(shown[-1])
    assert len(kinds) == 2 or path in ("/completion", "/v1/messages"), "some were cut, and some not"


@pytest.mark.parametrize("stop", ["e", "o w", "!", " a", ""])
def test_the_scores_are_those_of_the_answer(stop, http):
    """The last token may reach into the stop text."""
    for seed in range(12):
        body = {**SETTINGS, "max_tokens": 20, "logprobs": True, "seed": seed, "stop": [stop]}
        (choice,) = http.post("/v1/chat/completions", json=body).json()["choices"]
        tokens = [found["token"] for found in (choice["logprobs"] or {"content": []})["content"]]
        assert "".join(tokens).startswith(choice["message"]["content"])
        assert not tokens or len("".join(tokens[:-1])) < len(choice["message"]["content"])


def shown_chat(answer):
    (choice,) = answer["choices"]
    words = choice["message"]
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in words.get("tool_calls", ())
    ]
    scores = (choice["logprobs"] or {}).get("content", [])
    texts = words.get("reasoning_content") or "", words["content"] or ""
    return texts, calls, [found["token"] for found in scores], choice["finish_reason"]


def folded_chat(chunks):
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    calls = {}
    for reported in (call for choice in choices for call in choice["delta"].get("tool_calls", ())):
        found = calls.setdefault(reported["index"], [reported["function"].get("name"), ""])
        found[1] += reported["function"]["arguments"]
    deltas = [choice["delta"] for choice in choices]
    texts = tuple("".join(d.get(name) or "" for d in deltas) for name in ("reasoning_content", "content"))
    scores = [score for choice in choices for score in (choice.get("logprobs") or {}).get("content", ())]
    tokens = [score["token"] for score in scores]
    return texts, [*map(tuple, calls.values())], tokens, choices[-1]["finish_reason"]


def shown_responses(answer):
    items = answer["output"]
    texts = [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in items]
    return [(item["type"], item["status"]) for item in items], texts, answer["status"]


def folded_responses(events):
    deltas = [event for event in events if event["type"].endswith(".delta")]
    texts = {event["item"]["id"]: "" for event in events if event["type"] == "response.output_item.added"}
    for event in deltas:
        texts[event["item_id"]] += event["delta"]
    items, _, status = shown_responses(events[-1]["response"])
    return items, [*texts.values()], status


PARTS = ("thinking", "text", "partial_json", "signature")


def shown_anthropic(answer):
    names = ("type", "thinking", "text", "name", "input")
    return [tuple(b.get(name) for name in names) for b in answer["content"]], answer["stop_reason"]


def folded_anthropic(events):
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    texts = [""] * len(blocks)
    for event in (event for event in events if event["type"] == "content_block_delta"):
        texts[event["index"]] += next(event["delta"].get(n) or "" for n in PARTS if n in event["delta"])
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == list(range(len(blocks)))
    for block, text in zip(blocks, texts, strict=True):
        block |= {"input": read(text)} if block["type"] == "tool_use" else {block["type"]: text}
    (last,) = [event for event in events if event["type"] == "message_delta"]
    return shown_anthropic({"content": blocks, **last["delta"]})


def read(text):
    """The input of a call; one that was cut has none."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def functions(lines):
    return str([call["function"] for line in lines for call in line["message"].get("tool_calls", ())])


def folded_ollama(lines):
    texts = ["".join(line["message"].get(name, "") for line in lines) for name in ("thinking", "content")]
    return texts, functions(lines), lines[-1]["done_reason"]


def shown_completion(answer):
    probabilities = [found["token"] for found in answer.get("completion_probabilities", ())]
    return answer["content"], probabilities, answer["stop_type"]


def folded_completion(chunks):
    text = "".join(chunk["content"] for chunk in chunks)
    scores = [found for chunk in chunks for found in chunk.get("completion_probabilities", ())]
    return shown_completion({**chunks[-1], "content": text, "completion_probabilities": scores})


def folded_text(chunks):
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    return text, chunks[-1]["choices"][0]["finish_reason"]


READERS = {
    "/v1/chat/completions": (shown_chat, folded_chat),
    "/v1/responses": (shown_responses, folded_responses),
    "/v1/messages": (shown_anthropic, folded_anthropic),
    "/api/chat": (lambda answer: folded_ollama([answer]), folded_ollama),
    "/completion": (shown_completion, folded_completion),
    "/v1/completions": (lambda answer: folded_text([answer]), folded_text),
}
