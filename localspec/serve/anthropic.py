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
from localspec.serve.http import Interface, Writer, answer, data_line, fields_of, named_event
from localspec.serve.openai import prompt_of
from localspec.serve.options import Fields, Problem, cut, openai_options
from localspec.serve.replies import Block, ReplyRequest, ServedReply

_DELTAS: Final = {
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.ANSWER: ("text_delta", "text"),
    Kind.TOOL_CALL: ("input_json_delta", "partial_json"),
}
_READ: Final = ("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking")
_REFUSED: Final = {"thread": "nothing is stored here; send the whole conversation"}
_LEAST_BUDGET: Final = 1024  # least number of tokens for thinking, as in Anthropic's interface
_ERROR_TYPES: Final = {413: "request_too_large", 500: "api_error", 501: "api_error", 503: "overloaded_error"}


def error_body(problem: Problem) -> object:
    """Return the body of an HTTP error."""
    kind, message = _ERROR_TYPES.get(problem.status, problem.kind), problem.message
    if problem.code == "context_length_exceeded":  # clients look for "too long" and shorten the conversation
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
        rendered = await self._rendered(request, self._conversation(await fields_of(request)))
        return answer({"input_tokens": len(rendered.tokens)})

    def _conversation(self, fields: Fields) -> ReplyRequest:
        system = fields.rest.pop("system", None)
        prompt = prompt_of(messages_of(system, fields.need("messages", list), fields.notices), fields.notices)
        fields.refuse(_REFUSED)
        as_chat(fields)
        return self._asked(fields, (prompt,), openai_options(fields))


def messages_of(system: object, messages: list[Any], notices: list[str]) -> list[dict[str, Any]]:
    """Convert Anthropic's messages; add a notice for each type of block that is left out. Raises BadSetting."""
    texts = () if system is None else texts_in(blocks_in(system, "system", notices), "system")
    # Claude Code's first system line is removed, because it changes in each request and defeats prompt caches.
    billed = "x-anthropic-billing-header"
    kept = (text.partition("\n")[2] if text.startswith(billed) else text for text in texts)
    converted = [{"role": "system", "content": text}] if (text := "\n\n".join(filter(None, kept))) else []
    for number, message in enumerate(messages, start=1):
        converted += converted_from(message, f"message {number}", notices)
    return converted


def converted_from(message: object, which: str, notices: list[str]) -> Iterator[dict[str, Any]]:
    """Convert an Anthropic message to chat messages. Messages with tool results come first."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise BadSetting(f"{which} cannot be {cut(message)}", hint="give role (user, assistant) and content")
    role, blocks = message["role"], blocks_in(message.get("content"), which, notices)
    for block in blocks:
        if block["type"] == "tool_result":
            result = content_of(blocks_in(block.get("content") or "", which, notices), which, "\n")
            yield {"role": "tool", "content": result, "tool_call_id": block.get("tool_use_id")}
    others = ("tool_use", "tool_result", "thinking", "redacted_thinking")
    said = [block for block in blocks if block["type"] not in others]
    calls = [
        {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input", {})}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    thoughts = "\n\n".join(str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking")
    if said or calls or role == "assistant":
        content = content_of(said, which, "\n\n" if role == "user" else "")
        yield {"role": role, "content": content, "reasoning": thoughts, "tool_calls": calls}


def content_of(blocks: list[dict[str, Any]], which: str, between: str) -> str | list[dict[str, Any]]:
    """Return the content of a message: one text with `between` between texts, or parts if there are images."""
    if not any(block["type"] == "image" for block in blocks):
        return between.join(texts_in(blocks, which))
    parts = list[dict[str, Any]]()
    for block in blocks:
        if block["type"] == "image":
            given = block.get("source")
            source = given if isinstance(given, dict) else {}
            parts.append({"type": "image", "image": source.get("data") or source.get("url")})
        else:
            parts += [{"type": "text", "text": text} for text in texts_in([block], which)]
    return parts


def blocks_in(content: object, which: str, notices: list[str]) -> list[dict[str, Any]]:
    """Return the blocks that are read here; a block of text may replace one of another type."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise BadSetting(f"the content of {which} cannot be {cut(content)}", hint="give a text or blocks")
    read: list[dict[str, Any]] = []
    for block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise BadSetting(f"{which} cannot have the block {cut(block)}", hint="give an object with a type")
        read += [block] if block["type"] in _READ else read_as_text(block, which, notices)
    return read


def read_as_text(block: dict[str, Any], which: str, notices: list[str]) -> list[dict[str, Any]]:
    """Return the texts of a document or search result; leave out a block of another type."""
    given = block.get("source")
    source = given if isinstance(given, dict) else {}
    names = ("title", "context") if block["type"] == "document" else ("title", "source")
    heads = [{"type": "text", "text": text} for name in names if isinstance(text := block.get(name), str)]
    match block["type"], source.get("type"):
        case "document", "text" if isinstance(text := source.get("data"), str):
            return [*heads, {"type": "text", "text": text}]
        case "document", "content":
            return [*heads, *blocks_in(source.get("content") or "", which, notices)]
        case "document", _:
            what = "PDF" if source.get("media_type") == "application/pdf" else "document"
            notices.append(f"a {what} was left out, because models read text and images only")
            return [*heads, {"type": "text", "text": f"[a {what} that this model cannot read]"}]
        case "search_result", _:
            return [*heads, *blocks_in(block.get("content") or "", which, notices)]
    notices.append(f"blocks of the type {cut(block['type'])} were left out")
    return []


def texts_in(blocks: list[dict[str, Any]], which: str) -> list[str]:
    for block in blocks:
        if block["type"] != "text" or not isinstance(block.get("text"), str):
            what = f"{which} has a block of type {cut(block['type'])}, but only text is read here"
            raise BadSetting(what, hint="leave the block out, or give a block of type text with its text")
    return [block["text"] for block in blocks]


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
    choice = Fields(fields.take("tool_choice", dict, {}), "tool_choice")
    kind = choice.take("type", str, "auto")
    names = {"any": "required", "auto": "auto", "none": "none", "tool": {"name": choice.take("name", str)}}
    if kind not in names:
        raise BadSetting(f"tool_choice cannot be of type {cut(kind)}", hint="give auto, any, tool or none")
    renamed = {
        "response_format": config.take("format", dict) or fields.take("output_format", dict),
        "reasoning_effort": config.take("effort", str),
        "think": None if thinking is None else thinking != "disabled",
        "thinking_budget_tokens": budget,
        "stop": fields.rest.pop("stop_sequences", None),
        "tools": [as_openai(tool) for tool in fields.take("tools", list, [])],
        "tool_choice": names[kind],
        "parallel_tool_calls": not choice.take("disable_parallel_tool_use", bool, False),
        "n": 1,
    }
    fields.rest |= {name: value for name, value in renamed.items() if value is not None}


def as_openai(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise BadSetting(f"a tool cannot be {cut(tool)}", hint="give an object with a name")
    if tool.get("type", "custom") not in ("custom", None):
        return {"type": tool["type"]}
    function = {"name": tool.get("name"), "description": tool.get("description")}
    function |= {"strict": True} if tool.get("strict") is True else {}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


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
