"""Anthropic's interface, as Claude Code speaks it: content blocks become messages, replies become events."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Piece, Reply, Started, ToolCall
from localspec.serve import numbers
from localspec.serve.bodies import Fields, Problem, cut
from localspec.serve.calls import Began, CallReader, Ended, Grew
from localspec.serve.http import Done, Interface, Prompt, Writer, answer, data_line, fields_of, named_event
from localspec.serve.openai import prompt_of
from localspec.serve.options import Wishes, checked, effort_options, own, tool_options

# Claude Code writes a number of each request into the first line of the system text: no prefix would be reused.
BILLING: Final = "x-anthropic-billing-header"


def messages_of(system: object, messages: list[Any]) -> list[dict[str, Any]]:
    """The conversation; neighbours of one role are one message. Raises BadSetting."""
    found: list[dict[str, Any]] = []
    if system is not None:
        texts = [without_billing(text) for text in texts_in(system, "system")]
        found.append({"role": "system", "content": "\n\n".join(filter(None, texts))})
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


def without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def converted_from(message: object, which: str) -> Iterator[dict[str, Any]]:
    """One message; results of tools come first, as messages of their own."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise BadSetting(
            f"{which} is {cut(message)}", hint="a message has a role, user or assistant, and content"
        )
    role, blocks = message["role"], blocks_in(message.get("content"), which)
    texts = [text_in(b, which) for b in blocks if b["type"] not in ("tool_use", "tool_result", *_THOUGHTS)]
    yield from (result(block, which) for block in blocks if block["type"] == "tool_result")
    calls = [call(block, which) for block in blocks if block["type"] == "tool_use"]
    thoughts = [str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking"]
    if texts or calls or role == "assistant":
        found: dict[str, Any] = {"role": role, "content": ("\n\n" if role == "user" else "").join(texts)}
        found |= {"tool_calls": calls} if calls else {}
        yield found | ({"reasoning_content": "\n\n".join(thoughts)} if calls and thoughts else {})


_THOUGHTS: Final = ("thinking", "redacted_thinking")


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
    """The text of a block, or of a document that is text."""
    source = block.get("source")
    if block["type"] == "document" and isinstance(source, dict) and source.get("type") == "text":
        block = {"type": "text", "text": source.get("data")}
    if block["type"] != "text" or not isinstance(block.get("text"), str):
        raise BadSetting(
            f"{which} has a block that is no text: {cut(block['type'])}", hint="models read text"
        )
    return str(block["text"])


def result(block: dict[str, Any], which: str) -> dict[str, Any]:
    text = "\n".join(texts_in(block.get("content") or "", which))
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": text}


def call(block: dict[str, Any], which: str) -> dict[str, Any]:
    name, arguments = block.get("name"), block.get("input", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise BadSetting(f"{which} has a tool_use without name or input", hint="repeat what the model wrote")
    return {"id": str(block.get("id", "")), "function": {"name": name, "arguments": arguments}}


WITHOUT_EFFECT: Final = (
    "metadata", "service_tier", "container", "context_management", "inference_geo", "betas",
    "cache_control", "speed", "diagnostics", "user_profile_id", "workspace_id",
)  # fmt: skip
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


def error_body(problem: Problem) -> object:
    """Clients shorten a conversation when they read that the prompt is too long."""
    too_long = problem.code == "context_length_exceeded"
    message = f"prompt is too long: {problem.message}" if too_long else problem.message
    return {
        "type": "error",
        "error": {"type": _ERROR_TYPES.get(problem.status, "api_error"), "message": message},
    }


class Anthropic(Interface):
    """The handlers."""

    async def messages(self, request: Request) -> Response:
        fields = await fields_of(request)
        max_tokens = fields.need("max_tokens", int)
        prompt, wishes = conversation(fields, {"max_tokens": max_tokens})
        asked = self._asked(fields, (prompt,), wishes)
        writer = MessageWriter(asked.chosen.name, wishes.options.get("stop", ()))
        return await self._respond(request, asked, writer)

    async def count_tokens(self, request: Request) -> Response:
        fields = await fields_of(request)
        fields.drop("max_tokens", "stream")
        prompt, wishes = conversation(fields, {})
        rendered = await self._rendered(request, self._chosen(fields), prompt, wishes.options)
        return answer({"input_tokens": len(rendered.tokens)})


def conversation(fields: Fields, options: dict[str, Any]) -> tuple[Prompt, Wishes]:
    """The prompt, and what is wanted of the reply. Raises BadSetting."""
    messages = messages_of(fields.rest.pop("system", None), fields.need("messages", list))
    found = own(fields, "stop_sequences")
    found |= thinking(Fields(fields.take("thinking", dict, {"type": "disabled"}), "thinking"))
    found |= output(fields)
    tools = called(fields)
    fields.drop(*WITHOUT_EFFECT)
    fields.refuse({"mcp_servers": "other servers are not asked"})
    wishes = Wishes(checked({"overflow": "error", **options, **found, **tools}))
    return prompt_of(messages), wishes


def thinking(wanted: Fields) -> dict[str, Any]:
    kind = wanted.take("type", str, "disabled")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise BadSetting(f"thinking is of type {cut(kind)}", hint="types are enabled, adaptive and disabled")
    return {"think": kind != "disabled"}


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


def called(fields: Fields) -> dict[str, Any]:
    """The tools in OpenAI's form, and how many may be called. Raises BadSetting."""
    tools = [as_openai(tool) for tool in fields.take("tools", list, [])]
    choice = Fields(fields.take("tool_choice", dict, {}), "tool_choice")
    kind = choice.take("type", str, "auto")
    names = {"any": "required", "auto": "auto", "none": "none", "tool": {"name": choice.take("name", str)}}
    if kind not in names:
        raise BadSetting(f"tool_choice is of type {cut(kind)}", hint="types are auto, any, tool and none")
    options = tool_options(Fields({"tools": tools, "tool_choice": names[kind]}))
    return {**options, "parallel_tool_calls": not choice.take("disable_parallel_tool_use", bool, False)}


def as_openai(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "custom") not in ("custom", None):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise BadSetting(f"a tool is of type {cut(kind)}", hint="localspec runs no tools: give your own")
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def usage(reply: Reply) -> dict[str, int]:
    stats = reply.stats
    return {**read(stats.prompt_tokens, stats.reused_tokens), "output_tokens": len(reply.tokens)}


def read(prompt_tokens: int, reused_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": prompt_tokens - reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reused_tokens,
        "output_tokens": 0,
    }


class MessageWriter(Writer):
    """A message, whole or as a stream of events with content blocks."""

    def __init__(self, model: str, stops: Sequence[str]) -> None:
        """`stops`: the stop sequences that were asked for."""
        self._stops = stops
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._block = -1  # number of the newest one
        self._kind: Kind | None = None  # of the open block
        self._reader = CallReader()

    def whole(self, done: list[Done]) -> dict[str, Any]:
        reply, notices = done[0].reply, done[0].notices
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
        if reply.text.strip() or not reply.tool_calls:
            content.append({"type": "text", "text": reply.text})
        content += [tool_use(call) for call in reply.tool_calls]
        numbers_of = {"usage": usage(reply), "timings": numbers.timings(reply, notices)}
        return {**self._message, "content": content, **self._ending(reply), **numbers_of}

    def started(self, index: int, started: Started) -> Iterator[bytes]:
        so_far = read(started.prompt_tokens, started.reused_tokens)
        yield named_event("message_start", message={**self._message, "usage": so_far})

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        if piece.kind is Kind.TOOL_CALL:
            yield from self._calls(piece.text)
            return
        thinks = piece.kind is Kind.REASONING
        if piece.kind is not self._kind:
            yield from self._close()
            empty = (
                {"type": "thinking", "thinking": "", "signature": ""}
                if thinks
                else {"type": "text", "text": ""}
            )
            yield self._open(empty)
            self._kind = piece.kind
        delta = (
            {"type": "thinking_delta", "thinking": piece.text}
            if thinks
            else {"type": "text_delta", "text": piece.text}
        )
        yield self._delta(delta)

    def _calls(self, text: str) -> Iterator[bytes]:
        for step in self._reader.push(text):
            match step:
                case Began(call):
                    yield from self._close()
                    block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                    yield self._open(block)
                    self._kind = Kind.TOOL_CALL
                case Grew(text=more):
                    yield self._delta({"type": "input_json_delta", "partial_json": more})
                case Ended():
                    yield from self._close()

    def finished(self, index: int, done: Done) -> Iterator[bytes]:
        yield from self._close()
        timings = numbers.timings(done.reply, done.notices)
        yield named_event(
            "message_delta", delta=self._ending(done.reply), usage=usage(done.reply), timings=timings
        )

    def end(self, done: list[Done]) -> Iterator[bytes]:
        yield named_event("message_stop")

    def failed(self, problem: Problem) -> bytes:
        return b"event: error\n" + data_line(error_body(problem))

    def silence(self, position: int) -> bytes:
        return f": queued {position}\n\n".encode() if position else named_event("ping")

    def _open(self, block: dict[str, Any]) -> bytes:
        self._block += 1
        return named_event("content_block_start", index=self._block, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._kind is None:
            return
        if self._kind is Kind.REASONING:
            yield self._delta({"type": "signature_delta", "signature": ""})
        yield named_event("content_block_stop", index=self._block)
        self._kind = None

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event("content_block_delta", index=self._block, delta=delta)

    def _ending(self, reply: Reply) -> dict[str, Any]:
        if reply.stopped_by and reply.stopped_by in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": reply.stopped_by}
        reason = "tool_use" if reply.tool_calls else "end_turn"
        if reply.finish_reason is FinishReason.LENGTH:
            reason = "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}


def tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
