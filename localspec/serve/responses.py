"""OpenAI's Responses interface, stateless: what Codex speaks. Its items become messages."""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Piece, Reply
from localspec.serve import numbers
from localspec.serve.bodies import Fields, Problem, cut
from localspec.serve.calls import Began, CallReader, Ended, Grew
from localspec.serve.http import Done, Interface, Writer, fields_of, named_event
from localspec.serve.openai import prompt_of
from localspec.serve.options import is_function

_AT_A_VENDOR: Final = (
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
)


def messages_of(instructions: str | None, given: object) -> list[dict[str, Any]]:
    """The conversation. Raises BadSetting."""
    found = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadSetting(f"input is {cut(given)}", hint="give a text or a list of items")
    thoughts = ""
    for number, item in enumerate(given, start=1):
        if not isinstance(item, dict):
            raise BadSetting(f"item {number} is {cut(item)}", hint="an item is an object with a type")
        kind = item.get("type", "message")
        if kind == "reasoning":
            thoughts = thoughts_in(item)
        elif kind in ("function_call", "custom_tool_call"):
            add_call(found, item, thoughts)
        elif kind in _AT_A_VENDOR:
            continue
        else:
            found.append(message_of(item, kind, number))
    return found


def message_of(item: dict[str, Any], kind: object, number: int) -> dict[str, Any]:
    if kind == "message":
        return {"role": item.get("role"), "content": item.get("content")}
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": item.get("output")}
    raise BadSetting(
        f"item {number} is of type {cut(kind)}", hint="send messages, function calls and their outputs"
    )


def thoughts_in(item: dict[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def add_call(found: list[dict[str, Any]], item: dict[str, Any], thoughts: str) -> None:
    """Calls of one turn are one message, together with what the assistant said before them."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    message = found[-1]
    if thoughts:
        message["reasoning_content"] = thoughts
    custom = item.get("type") == "custom_tool_call"  # its argument is a text
    arguments = {"input": item.get("input")} if custom else item.get("arguments")
    function = {"name": item.get("name"), "arguments": arguments}
    message.setdefault("tool_calls", []).append({"id": str(item.get("call_id", "")), "function": function})


_REFUSED: Final = {
    "previous_response_id": "nothing is stored here, send the whole conversation",
    "conversation": "nothing is stored here, send the whole conversation",
    "background": "replies are not kept",
    "prompt": "prompts are not stored here",
    "top_logprobs": "chat completions have them",
}
_WITHOUT_EFFECT: Final = ("include", "truncation", "stream_options", "client_metadata", "max_tool_calls")


class Responses(Interface):
    """The handler."""

    async def responses(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompt = prompt_of(messages_of(fields.take("instructions", str), fields.rest.pop("input", None)))
        fields.refuse(_REFUSED)
        fields.drop(*_WITHOUT_EFFECT)
        as_chat(fields)
        asked = self._asked(fields, (prompt,))
        return await self._respond(request, asked, ResponseWriter(asked.chosen.name))


def as_chat(fields: Fields) -> None:
    """Rename what chat completions have under another name. Raises BadSetting."""
    if fields.rest.get("n", 1) != 1:
        raise BadSetting("n is more than 1", hint="ask chat completions for several replies")
    reasoning = Fields(fields.take("reasoning", dict, {}), "reasoning")
    text = Fields(fields.take("text", dict, {}), "text")
    shape = text.take("format", dict, {})
    if shape.get("type") == "json_schema":
        shape = {"type": "json_schema", "json_schema": shape}
    renamed = {
        "max_tokens": fields.take("max_output_tokens", int),
        "reasoning_effort": reasoning.take("effort", str),
        "response_format": shape or None,
    }
    # Tools of other kinds run at a vendor; there they would be offered, here they are not.
    tools = [tool for tool in fields.take("tools", list, []) if is_function(tool)]
    fields.rest |= {name: value for name, value in renamed.items() if value is not None}
    fields.rest |= {"tools": tools} if tools else {}
    if not tools and fields.rest.get("tool_choice") == "auto":
        del fields.rest["tool_choice"]


@dataclass(slots=True)
class Item:
    """A part of the output: a message or the reasoning before it."""

    kind: Kind
    id: str
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def part(self) -> dict[str, Any]:
        if self.kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def form(self, status: str) -> dict[str, Any]:
        content = [self.part] if status != "in_progress" else []
        if self.kind is Kind.REASONING:
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status}
        head = {"id": self.id, "type": "message", "role": "assistant", "status": status}
        return {**head, "content": content}


class ResponseWriter(Writer):
    """A response, whole or as numbered events."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._id = f"resp_{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._sequence = -1
        self._output: list[dict[str, Any]] = []  # finished items
        self._item: Item | None = None  # the one that grows, unless it is a call
        self._call_id = ""  # of the newest call's item
        self._reader = CallReader()

    def whole(self, done: list[Done]) -> dict[str, Any]:
        reply = done[0].reply
        parts = ((Kind.REASONING, reply.reasoning), (Kind.ANSWER, reply.text))
        for kind, text in parts:
            if text.strip() or (kind is Kind.ANSWER and not reply.tool_calls):
                self._output.append(Item(kind, new_id(kind), [text]).form("completed"))
        for call in reply.tool_calls:
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            self._output.append(call_item(new_id(Kind.TOOL_CALL), call.id, call.name, arguments))
        return self._finished(done[0])

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        if piece.kind is Kind.TOOL_CALL:
            yield from self._calls(piece.text)
            return
        if self._item is None or self._item.kind is not piece.kind:
            yield from self._close()
            self._item = item = Item(piece.kind, new_id(piece.kind))
            yield self._event("response.output_item.added", **self._at, item=item.form("in_progress"))
            yield self._event("response.content_part.added", **self._in(item), part=item.part)
        self._item.texts.append(piece.text)
        yield self._event(
            f"response.{word(piece.kind)}.delta",
            **self._in(self._item),
            delta=piece.text,
            **no_logprobs(piece.kind),
        )

    def _calls(self, text: str) -> Iterator[bytes]:
        for step in self._reader.push(text):
            call = step.call
            match step:
                case Began():
                    yield from self._close()
                    self._call_id = new_id(Kind.TOOL_CALL)
                    item = call_item(self._call_id, call.id, call.name, "", "in_progress")
                    yield self._event("response.output_item.added", **self._at, item=item)
                case Grew(text=more):
                    where = {**self._at, "item_id": self._call_id}
                    yield self._event("response.function_call_arguments.delta", **where, delta=more)
                case Ended():
                    where = {**self._at, "item_id": self._call_id}
                    whole = {"name": call.name, "arguments": call.arguments}
                    yield self._event("response.function_call_arguments.done", **where, **whole)
                    item = call_item(self._call_id, call.id, call.name, call.arguments)
                    yield self._event("response.output_item.done", **self._at, item=item)
                    self._output.append(item)

    def finished(self, index: int, done: Done) -> Iterator[bytes]:
        yield from self._close()
        response = self._finished(done)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, problem: Problem) -> bytes:
        error = {"code": problem.code, "message": problem.message}
        return self._event("response.failed", response={**self._response("failed"), "error": error})

    @property
    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self._output)}

    def _in(self, item: Item) -> dict[str, Any]:
        return {**self._at, "item_id": item.id, "content_index": 0}

    def _close(self) -> Iterator[bytes]:
        """What ends the item that grew."""
        item, self._item = self._item, None
        if item is None:
            return
        yield self._event(
            f"response.{word(item.kind)}.done", **self._in(item), text=item.text, **no_logprobs(item.kind)
        )
        yield self._event("response.content_part.done", **self._in(item), part=item.part)
        yield self._event("response.output_item.done", **self._at, item=item.form("completed"))
        self._output.append(item.form("completed"))

    def _finished(self, done: Done) -> dict[str, Any]:
        cut = done.reply.finish_reason is FinishReason.LENGTH
        response = self._response("incomplete" if cut else "completed")
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        timings = numbers.timings(done.reply, done.notices)
        return {**response, "output": self._output, "usage": usage(done.reply), "timings": timings}

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "store": False,
        }

    def _event(self, kind: str, **values: Any) -> bytes:  # noqa: ANN401  JSON
        self._sequence += 1
        return named_event(kind, sequence_number=self._sequence, **values)


def word(kind: Kind) -> str:
    return "reasoning_text" if kind is Kind.REASONING else "output_text"


def no_logprobs(kind: Kind) -> dict[str, Any]:
    return {"logprobs": []} if kind is Kind.ANSWER else {}


def new_id(kind: Kind) -> str:
    names = {Kind.REASONING: "rs", Kind.ANSWER: "msg", Kind.TOOL_CALL: "fc"}
    return f"{names[kind]}_{secrets.token_hex(12)}"


def call_item(
    item_id: str, call_id: str, name: str, arguments: str, status: str = "completed"
) -> dict[str, Any]:
    head = {"id": item_id, "type": "function_call", "call_id": call_id}
    return {**head, "name": name, "arguments": arguments, "status": status}


def usage(reply: Reply) -> dict[str, Any]:
    stats, written = reply.stats, len(reply.tokens)
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.reused_tokens},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": stats.prompt_tokens + written,
    }
