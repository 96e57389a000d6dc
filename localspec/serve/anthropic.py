"""Anthropic's interface, as Claude Code uses it: content blocks become messages, replies become events."""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.errors import BadSetting
from localspec.events import Kind, Reply, Started, Stats
from localspec.serve import openai
from localspec.serve.http import Interface, Writer, data_line, fields_of, named_event
from localspec.serve.openai import prompt_of
from localspec.serve.options import Fields, Problem, cut, openai_options
from localspec.serve.replies import Block, ReplyRequest, ServedReply

_DELTAS: Final = {
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.ANSWER: ("text_delta", "text"),
    Kind.TOOL_CALL: ("input_json_delta", "partial_json"),
}
_REFUSED: Final = {"thread": "nothing is stored here; send the whole conversation"}
_LEAST_BUDGET: Final = 1024  # least number of tokens for thinking, as in Anthropic's interface
_ERROR_TYPES: Final = {413: "request_too_large", 500: "api_error", 501: "api_error", 503: "overloaded_error"}


def error_body(problem: Problem) -> object:
    kind, message = _ERROR_TYPES.get(problem.status, problem.kind), problem.message
    if problem.code == "context_length_exceeded":  # clients that read "too long" shorten the conversation
        kind, message = "invalid_request_error", f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


class Anthropic(Interface):
    async def messages(self, request: Request) -> Response:
        fields = await fields_of(request)
        fields.rest["max_tokens"] = fields.need("max_tokens", int)
        asked = self._conversation(fields)
        writer = MessageWriter(asked.chosen.name, asked.options.get("stop", ()))
        return await self.respond(request, asked, writer)

    async def count_tokens(self, request: Request) -> Response:
        return await self._counted(request, self._conversation(await fields_of(request)))

    def _conversation(self, fields: Fields) -> ReplyRequest:
        system = fields.rest.pop("system", None)
        prompt = prompt_of(messages_of(system, fields.need("messages", list)), fields.notices)
        fields.refuse(_REFUSED)
        as_chat(fields)
        return self._asked(fields, (prompt,), openai_options(fields))


def messages_of(system: object, messages: list[Any]) -> list[dict[str, Any]]:
    """Convert Anthropic's messages to chat messages. Raises BadSetting."""
    text = [] if system is None else [{"type": "text", "text": system}]
    kept = [*map(without_billing, system if isinstance(system, list) else text)]
    converted: list[dict[str, Any]] = [{"role": "system", "content": kept}] if any(map(text_of, kept)) else []
    for number, message in enumerate(messages, start=1):
        converted += converted_from(message, f"message {number}")
    return converted


def converted_from(message: object, which: str) -> Iterator[dict[str, Any]]:
    """Convert an Anthropic message to chat messages. Messages with tool results come first."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        hint = "give an object with a role (user or assistant) and content"
        raise BadSetting(f"{which} cannot be {cut(message)}", hint=hint)
    role, content = message["role"], message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    said, calls = list[Any](), list[dict[str, Any]]()
    for block in blocks:
        match block:
            case {"type": "tool_result"}:
                result = block.get("content")
                yield {"role": "tool", "content": result, "tool_call_id": block.get("tool_use_id")}
            case {"type": "tool_use"}:
                arguments = block.get("input", {})
                calls.append({"id": block.get("id"), "name": block.get("name"), "arguments": arguments})
            case {"type": "text", "text": str(text)} if role == "assistant" and said and text_of(said[-1]):
                said[-1] = {**said[-1], "text": said[-1]["text"] + text}  # join split texts
            case _:
                said.append(block)
    if said or calls or role == "assistant":
        yield {"role": role, "content": said, "tool_calls": calls}


def text_of(block: object) -> Any:
    return block.get("text") if isinstance(block, dict) else None


def without_billing(block: object) -> object:
    """Remove Claude Code's first system line, which changes in each request, so that prompt caches stay useful."""
    match block:
        case {"text": str(text), **rest} if text.startswith("x-anthropic-billing-header"):
            return {**rest, "text": text.partition("\n")[2]}
    return block


def as_chat(fields: Fields) -> None:
    """Replace the fields of an Anthropic request by those of chat completions. Raises BadSetting."""
    config = Fields(fields.take("output_config", dict, {}), "output_config")
    wanted = Fields(fields.take("thinking", dict, {}), "thinking")
    thinking, budget = wanted.take("type", str), wanted.take("budget_tokens", int)
    if thinking not in (None, "enabled", "adaptive", "disabled"):
        what = f"thinking cannot be of type {cut(thinking)}"
        raise BadSetting(what, hint="give the type enabled, adaptive or disabled")
    if budget is not None and not _LEAST_BUDGET <= budget < fields.rest.get("max_tokens", math.inf):
        hint = f"give at least {_LEAST_BUDGET:,} tokens, and fewer than max_tokens"
        raise BadSetting(f"budget_tokens cannot be {budget:,}", hint=hint)
    choice = fields.take("tool_choice", dict, {})
    fields.put(
        response_format=config.take("format", dict) or fields.take("output_format", dict),
        reasoning_effort=config.take("effort", str),
        think=None if thinking is None else thinking != "disabled",
        thinking_budget_tokens=budget,
        stop=fields.rest.pop("stop_sequences", None),
        tool_choice=choice or None,
        parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
        n=1,
    )


class MessageWriter(Writer):
    def __init__(self, model: str, stops: Sequence[str]) -> None:
        super().__init__(model)
        self._stops = stops

    def _message(self, content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        return {**head, "model": self._model, "content": content, **more}

    def whole(self, done: list[ServedReply]) -> dict[str, Any]:
        reply = done[0].reply
        given = {call.id: call.arguments for call in reply.tool_calls}  # arguments of finished calls, by id
        content = [block_of(block, given.get(block.call.id)) for block in done[0].blocks]
        numbers = {"usage": usage(reply.stats, len(reply.tokens)), "timings": done[0].timings}
        return self._message(content, **self._ending(reply), **numbers)

    def started(self, started: Started) -> Iterator[bytes]:
        message = self._message([], stop_reason=None, stop_sequence=None, usage=usage(started, 0))
        yield named_event("message_start", message=message)

    def open(self) -> Iterator[bytes]:
        block = block_of(Block(self.blocks[-1].kind, self.blocks[-1].call))
        yield named_event("content_block_start", index=len(self.blocks) - 1, content_block=block)

    def grow(self, text: str) -> Iterator[bytes]:
        yield self._delta(*_DELTAS[self.kind or Kind.ANSWER], text)

    def close(self, done: ServedReply | None = None) -> Iterator[bytes]:
        if self.kind is Kind.REASONING:
            yield self._delta("signature_delta", "signature", "")
        if self.kind is not None:
            yield named_event("content_block_stop", index=len(self.blocks) - 1)

    def finished(self, done: ServedReply) -> Iterator[bytes]:
        numbers = {"usage": usage(done.reply.stats, len(done.reply.tokens)), "timings": done.timings}
        yield named_event("message_delta", delta=self._ending(done.reply), **numbers)

    def end(self, done: list[ServedReply]) -> Iterator[bytes]:
        yield named_event("message_stop")

    def failed(self, problem: Problem) -> bytes:
        return b"event: error\n" + data_line(error_body(problem))

    def silence(self) -> bytes:
        return named_event("ping")

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        delta = {"type": kind, name: text}
        return named_event("content_block_delta", index=len(self.blocks) - 1, delta=delta)

    def _ending(self, reply: Reply) -> dict[str, Any]:
        if reply.stopped_by and reply.stopped_by in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": reply.stopped_by}
        reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[openai.reason(reply)]
        return {"stop_reason": reason, "stop_sequence": None}


def block_of(block: Block, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if block.kind is Kind.TOOL_CALL:
        return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": arguments or {}}
    if block.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def usage(read: Stats | Started, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": read.prompt_tokens - read.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": read.reused_tokens,
        "output_tokens": output_tokens,
    }
