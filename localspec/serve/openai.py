"""OpenAI's interface: messages in, chat completions, completions and models out; scores of tokens in both forms."""

import json
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import localspec
from localspec.chat.messages import as_messages
from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Likelihood, Piece, Reply, Scored, Scores, ToolCall
from localspec.serve import numbers
from localspec.serve.bodies import Fields, cut, is_kind, whole
from localspec.serve.calls import Began, CallReader, Grew
from localspec.serve.http import Asked, Done, Interface, Prompt, Writer, answer, data_line, fields_of


def of_chat(scores: Sequence[Scored]) -> dict[str, Any]:
    """For chat completions: one entry a token."""
    entries = [{**entry(s.chosen), "top_logprobs": [entry(a) for a in s.alternatives]} for s in scores]
    return {"content": entries, "refusal": None}


def of_text(scores: Sequence[Scored], start: int) -> dict[str, Any]:
    """For completions: lists side by side; `start`: characters of the text before."""
    texts = [text_of(s.chosen) for s in scores]
    offsets = [start + sum(map(len, texts[:n])) for n in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [s.chosen.logprob for s in scores],
        "top_logprobs": [{text_of(a): a.logprob for a in s.alternatives} for s in scores],
        "text_offset": offsets,
    }


def entry(found: Likelihood) -> dict[str, Any]:
    return {"token": text_of(found), "logprob": found.logprob, "bytes": found.piece}


def text_of(found: Likelihood) -> str:
    """A token's text; incomplete characters become U+FFFD."""
    return bytes(found.piece).decode(errors="replace")


_KEPT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
_ROLES = {"developer": "system"}


def prompt_of(messages: list[Any]) -> Prompt:
    """The prompt; what clients note on messages for themselves is left out. Raises BadSetting."""
    kept = [known(message, n) for n, message in enumerate(messages, start=1)]
    kept = one_system(kept)
    as_messages(kept)
    return Prompt(messages=tuple(kept))


def known(message: object, number: int) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadSetting(f"message {number} is {cut(message)}", hint="a message has a role and content")
    found = {name: message[name] for name in _KEPT if message.get(name) is not None}
    role = found.get("role")
    if isinstance(role, str):
        found["role"] = _ROLES.get(role, role)
    if isinstance(found.get("content"), list):
        found["content"] = [plain(part) for part in found["content"]]
    found["content"] = found.get("content", "")
    return found


def plain(part: object) -> object:
    """A part of a message; other interfaces have names of their own for texts."""
    if isinstance(part, dict):
        for kind, name in (("input_text", "text"), ("output_text", "text"), ("refusal", "refusal")):
            if part.get("type") == kind:
                return {"type": "text", "text": part.get(name)}
    return part


def one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Texts of system messages at the beginning are joined: most templates take one."""
    count = next((n for n, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    leading = messages[:count]
    if count < 2 or not all(isinstance(m["content"], str) for m in leading):
        return messages
    text = "\n\n".join(m["content"] for m in leading)
    return [{"role": "system", "content": text}, *messages[count:]]


MOST_PROMPTS = 64  # in one request for completions


@dataclass(frozen=True, slots=True)
class Form:
    """What every chunk and answer of one request repeats."""

    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    def of(self, name: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:  # noqa: ANN401
        """An object of this name."""
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"localspec-{localspec.__version__}",
            "choices": choices,
            **more,
        }


class OpenAI(Interface):
    """The handlers."""

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompt = prompt_of(fields.need("messages", list))
        with_usage = wants_usage(fields)
        asked = self._asked(fields, (prompt,), more=chat_scores(fields))
        form = Form(asked.chosen.name, f"chatcmpl-{secrets.token_hex(12)}")
        return await self._respond(request, asked, ChatWriter(form, asked, with_usage))

    async def input_tokens(self, request: Request) -> Response:
        """How long the prompt of a chat completion would be."""
        fields = await fields_of(request)
        prompt = prompt_of(fields.need("messages", list))
        asked = self._asked(fields, (prompt,), more=chat_scores(fields))
        rendered = await self._rendered(request, asked.chosen, prompt, asked.wishes.options)
        return answer({"object": "response.input_tokens", "input_tokens": len(rendered.tokens)})

    async def completions(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompts = prompts_of(fields.rest.pop("prompt", None))
        fields.refuse({"suffix": "models continue a text", "echo": "the prompt is not repeated"})
        if fields.take("best_of", int, 1) not in (1, fields.rest.get("n")):
            raise BadSetting("best_of is not supported: every reply is sent", hint="leave it out")
        scores = {"logprobs": whole(fields.rest.pop("logprobs", None))}
        with_usage = wants_usage(fields)
        asked = self._asked(fields, prompts, more=scores)
        form = Form(asked.chosen.name, f"cmpl-{secrets.token_hex(12)}")
        return await self._respond(request, asked, TextWriter(form, asked, with_usage))

    async def models(self, request: Request) -> Response:
        listed = [self._model(name) for name in self._pairs.names()]
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return answer({"object": "list", "data": listed, "has_more": False, **ends})

    async def model(self, request: Request) -> Response:
        return answer(self._model(self._pairs.choose(request.path_params["name"]).name))

    def _model(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "localspec"}
        found |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}  # Anthropic's
        loaded = self._jobs.loaded
        if loaded is None or self._pairs.pair_of(name) != loaded.ready.pair:
            return {**found, "status": {"value": "unloaded"}}
        meta = {"n_ctx": loaded.ready.context_length, "n_vocab": loaded.description.vocabulary_size}
        return {**found, "status": {"value": "loaded"}, "meta": meta}


def wants_usage(fields: Fields) -> bool:
    """Whether a stream ends with its usage."""
    stream_options = Fields(fields.take("stream_options", dict, {}), "stream_options")
    return bool(stream_options.take("include_usage", bool, False))


def prompts_of(given: object) -> tuple[Prompt, ...]:
    """A text, tokens, both mixed, llama-server's object with a text, or a list of these. Raises BadSetting."""
    if isinstance(given, dict) and not given.get("multimodal_data"):
        given = given.get("prompt_string")
    if isinstance(given, str):
        return (Prompt(text=given),)
    if not isinstance(given, list) or not given:
        raise BadSetting(f"prompt is {cut(given)}", hint="give a text, tokens, or a list of either")
    if any(isinstance(part, int) for part in given):
        if not all(is_kind(part, int) or isinstance(part, str) for part in given):
            raise BadSetting(f"prompt is {cut(given)}", hint="a list with tokens has tokens and texts only")
        return (Prompt(parts=tuple(given)),)
    if len(given) > MOST_PROMPTS:
        raise BadSetting(f"there are {len(given)} prompts", hint=f"send {MOST_PROMPTS} at most")
    return tuple(prompt for part in given for prompt in prompts_of(part))


def reason(reply: Reply) -> str:
    """OpenAI's finish_reason."""
    if reply.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def chat_scores(fields: Fields) -> dict[str, Any]:
    """logprobs and top_logprobs as localspec's option. Raises BadSetting."""
    wanted, count = fields.take("logprobs", bool, False), fields.take("top_logprobs", int)
    if count and not wanted:
        raise BadSetting("top_logprobs is given without logprobs", hint="set logprobs to true")
    return {"logprobs": count or 0} if wanted else {}


def message_choice(index: int, done: Done) -> dict[str, Any]:
    reply = done.reply
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["content"] = reply.text.strip() or None
        message["tool_calls"] = [call_form(call) for call in reply.tool_calls]
    logprobs = of_chat(done.scores) if done.scores else None
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason(reply)}


def call_form(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def text_choice(
    index: int, text: str, finish_reason: str | None, scores: Sequence[Scored] = (), start: int = 0
) -> dict[str, Any]:
    logprobs = of_text(scores, start) if scores else None
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


class OpenAIWriter(Writer):
    """What chat and text have in common."""

    name = chunk_name = "text_completion"

    def __init__(self, form: Form, asked: Asked, with_usage: bool) -> None:
        self._form = form
        self._asked = asked
        self._with_usage = with_usage
        self._scores: list[Scored] = []  # that no chunk has told yet
        self._scored = False  # whether any came: then every chunk has a list of them

    @abstractmethod
    def choice(self, index: int, done: Done) -> dict[str, Any]:
        """A whole one."""

    def whole(self, done: list[Done]) -> dict[str, Any]:
        choices = [self.choice(index, d) for index, d in enumerate(done)]
        return self._form.of(self.name, choices, **self._counted(done))

    def _counted(self, done: list[Done]) -> dict[str, Any]:
        """The numbers of all replies, and the timings of the last one."""
        usage = numbers.usage([d.reply for d in done], self._asked.wishes.replies)
        return {"usage": usage, "timings": numbers.timings(done[-1].reply, done[-1].notices)}

    def scores(self, index: int, scores: Scores) -> Iterable[bytes]:
        self._scored = True
        self._scores += scores.tokens
        return ()

    def _take_scores(self) -> list[Scored]:
        taken, self._scores = self._scores, []
        return taken

    def end(self, done: list[Done]) -> Iterator[bytes]:
        if self._with_usage:
            yield data_line(self._form.of(self.chunk_name, [], **self._counted(done)))
        yield b"data: [DONE]\n\n"

    def _chunk(self, choice: dict[str, Any], done: Done | None = None) -> bytes:
        """One choice; the last one has the numbers, unless a chunk of their own follows."""
        if done is None or self._with_usage:
            return data_line(self._form.of(self.chunk_name, [choice]))
        return data_line(
            self._form.of(self.chunk_name, [choice], timings=numbers.timings(done.reply, done.notices))
        )


class ChatWriter(OpenAIWriter):
    """Chat completions and their chunks."""

    name, chunk_name = "chat.completion", "chat.completion.chunk"

    def __init__(self, form: Form, asked: Asked, with_usage: bool) -> None:
        super().__init__(form, asked, with_usage)
        self._reader = CallReader()

    def choice(self, index: int, done: Done) -> dict[str, Any]:
        return message_choice(index, done)

    def begin(self) -> Iterator[bytes]:
        for index in range(self._asked.count):
            yield self._delta(index, {"role": "assistant", "content": None})

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        if piece.kind is Kind.TOOL_CALL:
            yield from self._calls(index, piece.text)
        elif piece.kind is Kind.REASONING:
            yield self._delta(index, {"reasoning_content": piece.text})
        else:
            yield self._delta(index, {"content": piece.text}, self._take_scores())

    def _calls(self, index: int, text: str) -> Iterator[bytes]:
        for step in self._reader.push(text):
            number = {"index": step.call.number}
            if isinstance(step, Began):
                function = {"name": step.call.name, "arguments": ""}
                head = {**number, "id": step.call.id, "type": "function", "function": function}
                yield self._delta(index, {"tool_calls": [head]})
            elif isinstance(step, Grew):
                grown = {**number, "function": {"arguments": step.text}}
                yield self._delta(index, {"tool_calls": [grown]})

    def finished(self, index: int, done: Done) -> Iterator[bytes]:
        self._reader = CallReader()
        yield self._chunk(self._choice(index, {}, self._take_scores(), reason(done.reply)), done)

    def _delta(self, index: int, delta: dict[str, Any], scores: Sequence[Scored] = ()) -> bytes:
        return self._chunk(self._choice(index, delta, scores, None))

    def _choice(
        self, index: int, delta: dict[str, Any], scores: Sequence[Scored], finish_reason: str | None
    ) -> dict[str, Any]:
        logprobs = {"logprobs": of_chat(scores)} if self._scored else {}
        return {"index": index, "delta": delta, **logprobs, "finish_reason": finish_reason}


class TextWriter(OpenAIWriter):
    """Text completions."""

    _written = 0  # characters of the current reply

    def choice(self, index: int, done: Done) -> dict[str, Any]:
        return text_choice(index, done.reply.text, reason(done.reply), done.scores)

    def piece(self, index: int, piece: Piece) -> Iterable[bytes]:
        start, self._written = self._written, self._written + len(piece.text)
        return [self._chunk(text_choice(index, piece.text, None, self._take_scores(), start))]

    def finished(self, index: int, done: Done) -> Iterator[bytes]:
        scores, start, self._written = self._take_scores(), self._written, 0
        yield self._chunk(text_choice(index, "", reason(done.reply), scores, start), done)
