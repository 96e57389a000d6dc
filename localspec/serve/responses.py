"""OpenAI's Responses interface, without stored responses: items become messages, replies become events."""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Reply
from localspec.serve import numbers
from localspec.serve.http import Interface, Writer, fields_of, named_event
from localspec.serve.openai import prompt_of
from localspec.serve.options import Fields, Problem, cut, openai_options
from localspec.serve.replies import Block, ReplyRequest, ServedReply

_REFUSED: Final = {
    "previous_response_id": "nothing is stored here; send the whole conversation",
    "conversation": "nothing is stored here; send the whole conversation",
    "background": "finished replies are not stored",
    "prompt": "prompts are not stored",
}
_ECHOED: Final = (  # fields of a request that its response repeats
    "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature", "text",
    "tool_choice", "tools", "top_p", "truncation", "user",
)  # fmt: skip
Spaces = dict[str, dict[str, str]]  # name and namespace of a function, by the name that the model reads


class Responses(Interface):
    async def responses(self, request: Request) -> Response:
        asked, echoed, spaces = self._read(await fields_of(request))
        return await self.respond(request, asked, ResponseWriter(asked.chosen.name, echoed, spaces))

    async def input_tokens(self, request: Request) -> Response:
        asked, *_ = self._read(await fields_of(request))
        return await self._counted(request, asked, object="response.input_tokens")

    def _read(self, fields: Fields) -> tuple[ReplyRequest, dict[str, Any], Spaces]:
        echoed: dict[str, Any] = {name: fields.rest[name] for name in _ECHOED if name in fields.rest}
        instructions, given = fields.take("instructions", str), fields.rest.pop("input", None)
        prompt = prompt_of(messages_of(instructions, given, fields.notices), fields.notices)
        fields.refuse(_REFUSED)
        trims = fields.take("truncation", str) == "auto"
        spaces = as_chat(fields)
        options = openai_options(fields, {"overflow": "trim"} if trims else {})
        return self._asked(fields, (prompt,), options), echoed, spaces


def messages_of(instructions: str | None, given: object, notices: list[str]) -> list[dict[str, Any]]:
    """Convert OpenAI's Responses items to messages; add a notice for each ignored item. Raises BadSetting."""
    converted: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*converted, {"role": "user", "content": given}]
    if not isinstance(given, list):
        what = "input is missing from the request" if given is None else f"input cannot be {cut(given)}"
        raise BadSetting(what, hint="give a text or a list of items")
    thoughts = ""
    for number, item in enumerate(given, start=1):
        if not isinstance(item, dict):
            raise BadSetting(f"input item {number} cannot be {cut(item)}", hint='give an object with "type"')
        kind = str(item.get("type") or "message")
        if kind == "reasoning":
            parts = item.get("content") or item.get("summary")
            parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
            thoughts = "\n".join(str(part.get("text", "")) for part in parts)
        elif kind in ("function_call", "custom_tool_call"):
            # An assistant's text and the tool calls after it form one message.
            if not converted or converted[-1]["role"] != "assistant":
                converted.append({"role": "assistant", "content": ""})
            if thoughts:
                converted[-1]["reasoning_content"], thoughts = thoughts, ""
            text = {"input": item.get("input")}  # a custom tool has a text in place of arguments
            function = {"name": name_in_space(item), "arguments": item.get("arguments", text)}
            call = {"id": str(item.get("call_id", "")), "function": function}
            converted[-1].setdefault("tool_calls", []).append(call)
        elif kind == "message":
            said = {"role": item.get("role"), "content": item.get("content")}
            converted.append(said | ({"reasoning_content": thoughts} if said["role"] == "assistant" else {}))
            thoughts = ""
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call_id = str(item.get("call_id", ""))
            converted.append({"role": "tool", "tool_call_id": call_id, "content": item.get("output")})
        else:  # the item belongs to a tool that the model cannot use here
            notices.append(f"items of the type {cut(kind)} were left out")
    return converted


def name_in_space(function: Mapping[str, Any]) -> Any:
    """Return the name of a function with its namespace, as the model reads it."""
    space, name = function.get("namespace"), function.get("name")
    return f"{space.rstrip('_')}__{name}" if isinstance(space, str) and space else name


def without_spaces(tools: list[Any]) -> tuple[list[Any], Spaces]:
    """Return the tools, with each function of a namespace as a tool of its own, and the names of those functions."""
    flat, spaces = list[Any](), Spaces()
    for tool in tools:
        inner = tool.get("tools") if isinstance(tool, dict) and tool.get("type") == "namespace" else None
        for each in inner if isinstance(inner, list) else ():
            if isinstance(each, dict) and isinstance(each.get("name"), str):
                own = {"name": each["name"], "namespace": str(tool.get("name", ""))}
                flat.append({**each, "name": name_in_space(own)})
                spaces[flat[-1]["name"]] = own
        flat += [tool] if inner is None else []
    return flat, spaces


def as_chat(fields: Fields) -> Spaces:
    """Replace the fields of a Responses request by those of chat completions. Raises BadSetting."""
    tools, spaces = without_spaces(fields.take("tools", list, []))
    if isinstance(choice := fields.rest.get("tool_choice"), dict) and "namespace" in choice:
        fields.rest["tool_choice"] = {**choice, "name": name_in_space(choice)}
    reasoning = Fields(fields.take("reasoning", dict, {}), "reasoning")
    text = Fields(fields.take("text", dict, {}), "text")
    fields.put(
        max_tokens=fields.take("max_output_tokens", int),
        reasoning_effort=reasoning.take("effort", str),
        response_format=text.take("format", dict),
        tools=tools or None,
        n=1,
    )
    return spaces


class ResponseWriter(Writer):
    def __init__(
        self, model: str, echoed: dict[str, Any] | None = None, spaces: Spaces | None = None
    ) -> None:
        """`echoed`: the fields of the request that the response repeats."""
        super().__init__(model)
        self._echoed, self._spaces = echoed or {}, spaces or {}
        self._id = f"resp_{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._sequence = -1
        self._output: list[dict[str, Any]] = []  # finished items
        self._item_id = ""  # the id of the newest item

    def whole(self, done: list[ServedReply]) -> dict[str, Any]:
        for block in done[0].blocks:
            status = status_of(done[0]) if block is done[0].blocks[-1] else "completed"
            self._output.append(self._item(block, new_id(block.kind), status))
        return self._finished(done[0])

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self.silence()

    def open(self) -> Iterator[bytes]:
        kind = self.kind or Kind.ANSWER
        self._item_id = new_id(kind)
        item = self._item(Block(kind, self.blocks[-1].call), self._item_id, "in_progress")
        yield self._event("response.output_item.added", **self._at, item=item)
        if kind is not Kind.TOOL_CALL:
            yield self._event("response.content_part.added", **self._inside, part=text_part(kind, ""))

    def grow(self, text: str) -> Iterator[bytes]:
        yield self._of_text("delta", delta=text)

    def close(self, done: ServedReply | None = None) -> Iterator[bytes]:
        if not self.blocks:
            return
        block, text = self.blocks[-1], self.blocks[-1].text
        item = self._item(block, self._item_id, status_of(done) if done else "completed")
        if not (done and done.cut):
            if block.kind is Kind.TOOL_CALL:
                yield self._of_text("done", name=item["name"], arguments=text)
            else:
                part = text_part(block.kind, text)
                yield self._of_text("done", text=text)
                yield self._event("response.content_part.done", **self._inside, part=part)
            yield self._event("response.output_item.done", **self._at, item=item)
        self._output.append(item)

    def finished(self, done: ServedReply) -> Iterator[bytes]:
        response = self._finished(done)
        yield self._event(f"response.{response['status']}", response=response, timings=done.timings)

    def silence(self) -> bytes:  # sends an event, because some clients ignore comments
        return self._event("response.in_progress", response=self._response("in_progress"))

    def empty(self) -> Iterator[bytes]:
        yield self.silence()

    def failed(self, problem: Problem) -> bytes:
        error = {"code": problem.code, "message": problem.message}
        return self._event("response.failed", response={**self._response("failed"), "error": error})

    def _item(self, block: Block, item_id: str, status: str) -> dict[str, Any]:
        return item_of(block, item_id, status) | self._spaces.get(block.call.name, {})

    @property
    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self._output)}

    @property
    def _inside(self) -> dict[str, Any]:
        return {**self._at, "item_id": self._item_id, "content_index": 0}

    def _of_text(self, what: str, **values: Any) -> bytes:
        if self.kind is Kind.TOOL_CALL:
            where = {**self._at, "item_id": self._item_id}
            return self._event(f"response.function_call_arguments.{what}", **where, **values)
        more: dict[str, Any] = {"logprobs": []} if self.kind is Kind.ANSWER else {}
        kind = text_part(self.kind or Kind.ANSWER, "")["type"]
        return self._event(f"response.{kind}.{what}", **self._inside, **values, **more)

    def _finished(self, done: ServedReply) -> dict[str, Any]:
        response = self._response(status := status_of(done))
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response["incomplete_details"] = cut
        return {**response, "output": self._output, "usage": usage(done.reply), "timings": done.timings}

    def _response(self, status: str) -> dict[str, Any]:
        head = {"id": self._id, "object": "response", "created_at": self._created, "status": status}
        usual = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "store": False}
        unset = dict.fromkeys(("error", "incomplete_details", "instructions", "temperature", "top_p"))
        body = {**head, "model": self._model, "output": [], "metadata": {}, **usual, **unset}
        return body | self._echoed

    def _event(self, kind: str, **values: Any) -> bytes:
        self._sequence += 1
        return named_event(kind, sequence_number=self._sequence, **(self.live | values))


def status_of(done: ServedReply) -> str:
    return "incomplete" if done.reply.finish_reason is FinishReason.LENGTH else "completed"


def new_id(kind: Kind) -> str:
    names = {Kind.REASONING: "rs", Kind.ANSWER: "msg", Kind.TOOL_CALL: "fc"}
    return f"{names[kind]}_{secrets.token_hex(12)}"


def text_part(kind: Kind, text: str) -> dict[str, Any]:
    if kind is Kind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def item_of(block: Block, item_id: str, status: str) -> dict[str, Any]:
    item = {"id": item_id, "status": status}
    if block.kind is Kind.TOOL_CALL:
        named = {"call_id": block.call.id, "name": block.call.name, "arguments": block.text}
        return {**item, "type": "function_call", **named}
    content = [text_part(block.kind, block.text)] if block.pieces else []
    if block.kind is Kind.REASONING:
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
