"""OpenAI's Responses interface, stateless, as Codex speaks it: items become messages, replies become events."""

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Reply, ToolCall
from localspec.serve import numbers
from localspec.serve.bodies import Fields, Problem, cut
from localspec.serve.http import Interface, Writer, fields_of, named_event, parts_of
from localspec.serve.openai import prompt_of
from localspec.serve.options import openai_options
from localspec.serve.replies import Done

_REFUSED: Final = {
    "previous_response_id": "nothing is stored here, send the whole conversation",
    "conversation": "nothing is stored here, send the whole conversation",
    "background": "replies are not kept",
    "prompt": "prompts are not stored here",
    "top_logprobs": "chat completions have them",
}
_ARGUMENTS: Final = ("input", "action", "operation", "arguments")  # in calls of tools that are no functions
_WITHOUT_EFFECT: Final = ("include", "truncation", "stream_options", "client_metadata", "max_tool_calls")


class Responses(Interface):
    """The handler."""

    async def responses(self, request: Request) -> Response:
        fields = await fields_of(request)
        instructions, given = fields.take("instructions", str), fields.rest.pop("input", None)
        prompt = prompt_of(messages_of(instructions, given, fields.notices))
        fields.refuse(_REFUSED)
        fields.drop(*_WITHOUT_EFFECT)
        as_chat(fields)
        asked = self._asked(fields, (prompt,), openai_options(fields))
        return await self.respond(request, asked, ResponseWriter(asked.chosen.name))


def messages_of(instructions: str | None, given: object, notices: list[str]) -> list[dict[str, Any]]:
    """The conversation in the form of chat completions; `notices` get what is left out. Raises BadSetting."""
    found: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not isinstance(given, list):
        what = "input is missing from the request" if given is None else f"input is {cut(given)}"
        raise BadSetting(what, hint="give a text or a list of items")
    thoughts = ""
    for number, item in enumerate(given, start=1):
        if not isinstance(item, dict):
            raise BadSetting(f"item {number} is {cut(item)}", hint="an item is an object with a type")
        kind = str(item.get("type") or "message")
        if kind == "reasoning":
            thoughts = thoughts_in(item)
        elif "call_id" in item and kind.endswith("_call"):
            add_call(found, item, thoughts)
            thoughts = ""
        elif kind == "message":
            said = {"role": item.get("role"), "content": item.get("content")}
            found.append(said | ({"reasoning_content": thoughts} if said["role"] == "assistant" else {}))
            thoughts = ""
        elif kind.endswith("_call_output"):
            call_id = str(item.get("call_id") or item.get("id", ""))
            found.append({"role": "tool", "tool_call_id": call_id, "content": output_of(item)})
        else:  # a vendor made it, or a client keeps it for itself
            notices.append(f"items of the type {cut(kind)} were left out")
    return found


def output_of(item: dict[str, Any]) -> object:
    """A text or its parts; other results as JSON."""
    output = item.get("output")
    parts = output if isinstance(output, list) else []
    texts = all(isinstance(part, dict) and "text" in str(part.get("type")) for part in parts)
    return output if isinstance(output, str) or (parts and texts) else json.dumps(output, ensure_ascii=False)


def thoughts_in(item: dict[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def add_call(found: list[dict[str, Any]], item: dict[str, Any], thoughts: str) -> None:
    """Calls of one turn are one message, together with the assistant's text before them."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    message = found[-1]
    if thoughts:
        message["reasoning_content"] = thoughts
    kind = str(item["type"])
    name, arguments = item.get("name") or kind.removesuffix("_call"), item.get("arguments")
    if kind != "function_call":
        arguments = {key: value for key, value in item.items() if key in _ARGUMENTS}
    function = {"name": name, "arguments": arguments}
    message.setdefault("tool_calls", []).append({"id": str(item.get("call_id", "")), "function": function})


def as_chat(fields: Fields) -> None:
    """Give fields the names that they have in chat completions. Raises BadSetting."""
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
    fields.rest |= {name: value for name, value in renamed.items() if value is not None}


class ResponseWriter(Writer):
    """A response, whole or as numbered events."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._id = f"resp_{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._sequence = -1
        self._output: list[dict[str, Any]] = []  # finished items
        self._item_id = ""  # of the newest item
        self._text = ""  # of the item that grows

    def whole(self, done: list[Done]) -> dict[str, Any]:
        for kind, text, call in parts_of(done[0].reply):
            self._output.append(item_of(kind, new_id(kind), text, call))
        return self._finished(done[0])

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def open(self) -> Iterator[bytes]:
        kind = self.kind or Kind.ANSWER
        self._item_id, self._text = new_id(kind), ""
        item = item_of(kind, self._item_id, None, self.call)
        yield self._event("response.output_item.added", **self._at, item=item)
        if kind is not Kind.TOOL_CALL:
            yield self._event("response.content_part.added", **self._inside, part=text_part(kind, ""))

    def grow(self, text: str) -> Iterator[bytes]:
        self._text += text
        yield self._of_text("delta", delta=text)

    def close(self, *, cut: bool = False) -> Iterator[bytes]:
        kind, text = self.kind, self._text
        if kind is None or cut:
            return
        if kind is Kind.TOOL_CALL:
            yield self._of_text("done", name=self.call.name, arguments=text)
        else:
            yield self._of_text("done", text=text)
            yield self._event("response.content_part.done", **self._inside, part=text_part(kind, text))
        item = item_of(kind, self._item_id, text, self.call)
        yield self._event("response.output_item.done", **self._at, item=item)
        self._output.append(item)

    def finished(self, done: Done) -> Iterator[bytes]:
        response = self._finished(done)
        yield self._event(f"response.{response['status']}", response=response)

    def silence(self) -> bytes:
        """An event: clients that wait for one see no comments."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    def failed(self, problem: Problem) -> bytes:
        error = {"code": problem.code, "message": problem.message}
        return self._event("response.failed", response={**self._response("failed"), "error": error})

    @property
    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self._output)}

    @property
    def _inside(self) -> dict[str, Any]:
        return {**self._at, "item_id": self._item_id, "content_index": 0}

    def _of_text(self, what: str, **values: Any) -> bytes:  # noqa: ANN401  JSON
        """An event about the text of the open item."""
        if self.kind is Kind.TOOL_CALL:
            where = {**self._at, "item_id": self._item_id}
            return self._event(f"response.function_call_arguments.{what}", **where, **values)
        more: dict[str, Any] = {"logprobs": []} if self.kind is Kind.ANSWER else {}
        kind = text_part(self.kind or Kind.ANSWER, "")["type"]
        return self._event(f"response.{kind}.{what}", **self._inside, **values, **more)

    def _finished(self, done: Done) -> dict[str, Any]:
        cut = done.reply.finish_reason is FinishReason.LENGTH
        response = self._response("incomplete" if cut else "completed")
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        return {**response, "output": self._output, "usage": usage(done.reply), "timings": done.timings}

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": [],
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "store": False,
            **dict.fromkeys(("error", "incomplete_details", "instructions", "temperature", "top_p")),
        }

    def _event(self, kind: str, **values: Any) -> bytes:  # noqa: ANN401  JSON
        self._sequence += 1
        return named_event(kind, sequence_number=self._sequence, **values)


def new_id(kind: Kind) -> str:
    names = {Kind.REASONING: "rs", Kind.ANSWER: "msg", Kind.TOOL_CALL: "fc"}
    return f"{names[kind]}_{secrets.token_hex(12)}"


def text_part(kind: Kind, text: str) -> dict[str, Any]:
    if kind is Kind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def item_of(kind: Kind, item_id: str, text: str | None, call: ToolCall) -> dict[str, Any]:
    """A call, a message, or the reasoning before it; it is in progress while it has no text."""
    item = {"id": item_id, "status": "in_progress" if text is None else "completed"}
    if kind is Kind.TOOL_CALL:
        named = {"call_id": call.id, "name": call.name, "arguments": text or ""}
        return {**item, "type": "function_call", **named}
    content = [] if text is None else [text_part(kind, text)]
    if kind is Kind.REASONING:
        return {**item, "type": "reasoning", "summary": [], "content": content}
    return {**item, "type": "message", "role": "assistant", "content": content}


def usage(reply: Reply) -> dict[str, Any]:
    told = numbers.usage([reply])
    return {
        "input_tokens": told["prompt_tokens"],
        "input_tokens_details": told["prompt_tokens_details"],
        "output_tokens": told["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": told["total_tokens"],
    }
