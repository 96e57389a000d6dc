"""Anthropic's interface, as Claude Code speaks it: content blocks become messages, replies become events."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.engine.messages import Answer
from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Reply, Started, Stats, ToolCall
from localspec.serve.bodies import Fields, Problem, cut
from localspec.serve.http import (
    Interface,
    Writer,
    answer,
    data_line,
    fields_of,
    named_event,
    parts_of,
)
from localspec.serve.openai import prompt_of
from localspec.serve.options import checked, effort_options, own, tool_options
from localspec.serve.replies import Done

# Claude Code writes a number of each request into the first line of the system text: no prefix would be reused.
_BILLING: Final = "x-anthropic-billing-header"
_WITHOUT_EFFECT: Final = (
    "metadata", "service_tier", "container", "context_management", "inference_geo", "betas",
    "cache_control", "speed", "diagnostics", "user_profile_id", "workspace_id",
)  # fmt: skip
_NOT_TEXT: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking")
_DELTAS: Final = {
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.ANSWER: ("text_delta", "text"),
    Kind.TOOL_CALL: ("input_json_delta", "partial_json"),
}
_ERROR_TYPES: Final = {413: "request_too_large", 500: "api_error", 501: "api_error", 503: "overloaded_error"}


def error_body(problem: Problem) -> object:
    """Clients shorten a conversation when they read that the prompt is too long."""
    kind, message = _ERROR_TYPES.get(problem.status, problem.kind), problem.message
    if problem.code == "context_length_exceeded":
        kind, message = "invalid_request_error", f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


class Anthropic(Interface):
    """The handlers."""

    async def messages(self, request: Request) -> Response:
        fields = await fields_of(request)
        max_tokens = fields.need("max_tokens", int)
        prompt, options = conversation(fields, {"max_tokens": max_tokens})
        asked = self._asked(fields, (prompt,), options)
        return await self.respond(request, asked, MessageWriter(asked.chosen.name, options.get("stop", ())))

    async def count_tokens(self, request: Request) -> Response:
        fields = await fields_of(request)
        fields.drop("max_tokens")
        prompt, options = conversation(fields, {})
        rendered = await self._rendered(request, self._asked(fields, (prompt,), options))
        return answer({"input_tokens": len(rendered.tokens)})


def conversation(fields: Fields, options: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
    """The prompt, and the options of the reply. Raises BadSetting."""
    messages = messages_of(fields.rest.pop("system", None), fields.need("messages", list))
    kind = Fields(fields.take("thinking", dict, {}), "thinking").take("type", str, "disabled")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise BadSetting(f"thinking is of type {cut(kind)}", hint="types are enabled, adaptive and disabled")
    options |= own(fields, "stop_sequences") | {"think": kind != "disabled"}
    options |= output(fields) | tools_of(fields)
    fields.drop(*_WITHOUT_EFFECT)
    fields.refuse({"mcp_servers": "other servers are not asked"})
    return prompt_of(messages), checked(options)


def messages_of(system: object, messages: list[Any]) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form; neighbours of one role are one message. Raises BadSetting."""
    found: list[dict[str, Any]] = []
    if system is not None:
        texts = texts_in(system, "system")
        kept = (text.partition("\n")[2] if text.startswith(_BILLING) else text for text in texts)
        found.append({"role": "system", "content": "\n\n".join(filter(None, kept))})
    for number, message in enumerate(messages, start=1):
        for converted in converted_from(message, f"message {number}"):
            if found and mergeable(found[-1], converted):
                found[-1]["content"] += "\n\n" + converted["content"]
            else:
                found.append(converted)
    return [message for message in found if message["role"] != "system" or message["content"]]


def mergeable(before: dict[str, Any], message: dict[str, Any]) -> bool:
    same = before["role"] == message["role"] in ("user", "assistant", "system")
    return same and not any("tool_calls" in m or "reasoning_content" in m for m in (before, message))


def converted_from(message: object, which: str) -> Iterator[dict[str, Any]]:
    """One message; results of tools come first, as separate messages."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        hint = "a message has a role, user or assistant, and content"
        raise BadSetting(f"{which} is {cut(message)}", hint=hint)
    role, blocks = message["role"], blocks_in(message.get("content"), which)
    texts = [text_in(block, which) for block in blocks if block["type"] not in _NOT_TEXT]
    for block in blocks:
        if block["type"] == "tool_result":
            text = "\n".join(texts_in(block.get("content") or "", which))
            yield {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": text}
    calls = [call_in(block, which) for block in blocks if block["type"] == "tool_use"]
    thoughts = [str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking"]
    if texts or calls or role == "assistant":
        found: dict[str, Any] = {"role": role, "content": ("\n\n" if role == "user" else "").join(texts)}
        found |= {"tool_calls": calls} if calls else {}
        yield found | ({"reasoning_content": "\n\n".join(thoughts)} if thoughts else {})


def blocks_in(content: object, which: str) -> list[dict[str, Any]]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise BadSetting(f"the content of {which} is {cut(content)}", hint="give a text or a list of blocks")
    for block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise BadSetting(f"{which} has a block {cut(block)}", hint="a block is an object with a type")
    return blocks


def texts_in(content: object, which: str) -> list[str]:
    return [text_in(block, which) for block in blocks_in(content, which)]


def text_in(block: dict[str, Any], which: str) -> str:
    """The text of a block, or of a text document."""
    source = block.get("source")
    if block["type"] == "document" and isinstance(source, dict) and source.get("type") == "text":
        block = {"type": "text", "text": source.get("data")}
    if block["type"] != "text" or not isinstance(block.get("text"), str):
        raise BadSetting(f"{which} has a block without text: {cut(block['type'])}", hint="models read text")
    return str(block["text"])


def call_in(block: dict[str, Any], which: str) -> dict[str, Any]:
    name, arguments = block.get("name"), block.get("input", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise BadSetting(f"{which} has a tool_use without name or input", hint="repeat the model's own call")
    return {"id": str(block.get("id", "")), "function": {"name": name, "arguments": arguments}}


def output(fields: Fields) -> dict[str, Any]:
    """output_config and the older output_format: an effort, a JSON schema."""
    config = Fields(fields.take("output_config", dict, {}), "output_config")
    shape = config.take("format", dict) or fields.take("output_format", dict)
    found: dict[str, Any] = {}
    if shape is not None:
        wanted = Fields(shape, "format")
        if wanted.take("type", str) != "json_schema":
            raise BadSetting(
                "the output format is no json_schema", hint="give a json_schema, or leave it out"
            )
        found["json_schema"] = wanted.need("schema", dict)
    effort = config.take("effort", str)
    return {**found, **(effort_options(effort) if effort else {})}


def tools_of(fields: Fields) -> dict[str, Any]:
    """The tools in OpenAI's form, and how many may be called. Raises BadSetting."""
    tools = [as_openai(tool) for tool in fields.take("tools", list, [])]
    choice = Fields(fields.take("tool_choice", dict, {}), "tool_choice")
    kind = choice.take("type", str, "auto")
    names = {"any": "required", "auto": "auto", "none": "none", "tool": {"name": choice.take("name", str)}}
    if kind not in names:
        raise BadSetting(f"tool_choice is of type {cut(kind)}", hint="types are auto, any, tool and none")
    inner = Fields({"tools": tools, "tool_choice": names[kind]})
    options = tool_options(inner)
    fields.notices += inner.notices
    return {**options, "parallel_tool_calls": not choice.take("disable_parallel_tool_use", bool, False)}


def as_openai(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise BadSetting(f"a tool is {cut(tool)}", hint="a tool is an object with a name")
    if tool.get("type", "custom") not in ("custom", None):
        return {"type": tool["type"]}
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


class MessageWriter(Writer):
    """A message, whole or as a stream of events with content blocks."""

    def __init__(self, model: str, stops: Sequence[str]) -> None:
        """`stops`: the stop sequences of the request."""
        super().__init__(model)
        self._stops = stops
        self._block = -1  # number of the newest one

    def _message(self, content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:  # noqa: ANN401
        head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
        return {**head, "model": self._model, "content": content, **more}

    def whole(self, done: list[Done]) -> dict[str, Any]:
        reply = done[0].reply
        content = [block_of(kind, text, call) for kind, text, call in parts_of(reply)]
        numbers = {"usage": usage(reply.stats, len(reply.tokens)), "timings": done[0].timings}
        return self._message(content, **self._ending(reply), **numbers)

    def started(self, started: Started) -> Iterator[bytes]:
        message = self._message([], stop_reason=None, stop_sequence=None, usage=usage(started, 0))
        yield named_event("message_start", message=message)

    def open(self) -> Iterator[bytes]:
        self._block += 1
        block = block_of(self.kind, "", self.call)
        yield named_event("content_block_start", index=self._block, content_block=block)

    def grow(self, text: str) -> Iterator[bytes]:
        yield self._delta(*_DELTAS[self.kind or Kind.ANSWER], text)

    def close(self, *, cut: bool = False) -> Iterator[bytes]:
        if self.kind is Kind.REASONING:
            yield self._delta("signature_delta", "signature", "")
        if self.kind is not None:
            yield named_event("content_block_stop", index=self._block)

    def finished(self, done: Done) -> Iterator[bytes]:
        numbers = {"usage": usage(done.reply.stats, len(done.reply.tokens)), "timings": done.timings}
        yield named_event("message_delta", delta=self._ending(done.reply), **numbers)

    def end(self, done: list[Done]) -> Iterator[bytes]:
        yield named_event("message_stop")

    def failed(self, problem: Problem) -> bytes:
        return b"event: error\n" + data_line(error_body(problem))

    def silence(self) -> bytes:
        return named_event("ping")

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        return named_event("content_block_delta", index=self._block, delta={"type": kind, name: text})

    def _ending(self, reply: Reply) -> dict[str, Any]:
        if reply.stopped_by and reply.stopped_by in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": reply.stopped_by}
        reason = "tool_use" if reply.tool_calls else "end_turn"
        if reply.finish_reason is FinishReason.LENGTH:
            reason = "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}


def block_of(kind: Kind | None, text: str, call: ToolCall) -> dict[str, Any]:
    if kind is Kind.TOOL_CALL:
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
    if kind is Kind.REASONING:
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def usage(read: Stats | Started, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": read.prompt_tokens - read.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": read.reused_tokens,
        "output_tokens": output_tokens,
    }
