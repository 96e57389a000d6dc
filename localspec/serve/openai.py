"""OpenAI's interface, and the parts of it that the others share: messages, scores of tokens, growing tool calls."""

import json
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

import localspec
from localspec.chat.messages import KEYS, as_messages
from localspec.engine.messages import Answer
from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Likelihood, Reply, Scored
from localspec.options import MOST_LOGPROBS
from localspec.serve import numbers
from localspec.serve.bodies import Fields, cut, whole
from localspec.serve.http import Interface, Writer, answer, data_line, fields_of
from localspec.serve.options import openai_options
from localspec.serve.replies import Asked, Done

CONTEXT_LENGTH: Final = (  # its names: vLLM's, OpenRouter's, Groq's and Anthropic's
    "max_model_len", "context_length", "context_window", "max_input_tokens",
)  # fmt: skip
MOST_PROMPTS: Final = 64  # in one request for completions


class OpenAI(Interface):
    """The handlers."""

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompt, with_usage = prompt_of(fields.need("messages", list)), wants_usage(fields)
        asked = self._asked(fields, (prompt,), openai_options(fields, chat_scores(fields)))
        return await self.respond(request, asked, ChatWriter(asked, with_usage))

    async def completions(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompts = prompts_of(fields.rest.pop("prompt", None))
        fields.refuse({"suffix": "models continue a text", "echo": "the prompt is not repeated"})
        if fields.take("best_of", int, 1) not in (1, fields.rest.get("n")):
            raise BadSetting("best_of is not supported: every reply is sent", hint="leave it out")
        scores = {"logprobs": whole(fields.rest.pop("logprobs", None))}
        with_usage = wants_usage(fields)
        asked = self._asked(fields, prompts, openai_options(fields, scores))
        return await self.respond(request, asked, TextWriter(asked, with_usage))

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
        length = loaded.ready.context_length
        meta = {"n_ctx": length, "n_vocab": loaded.ready.vocabulary_size}
        state = "unloaded" if self._jobs.asleep else "loaded"
        return {**found, "status": {"value": state}, "meta": meta, **dict.fromkeys(CONTEXT_LENGTH, length)}


def prompt_of(messages: list[Any]) -> Answer:
    """The prompt of a conversation; unknown fields of messages are left out. Raises BadSetting."""
    known = [
        {key: message[key] for key in KEYS if key in message} if isinstance(message, dict) else message
        for message in messages
    ]
    read = as_messages(known)
    # System messages at the beginning are joined: most templates take one.
    count = next((n for n, message in enumerate(read) if message.role != "system"), len(read))
    if count > 1:
        known[:count] = [{"role": "system", "content": "\n\n".join(m.content for m in read[:count])}]
    return Answer(0, tuple(known))


def prompts_of(given: object) -> tuple[Answer, ...]:
    """A text, tokens, both mixed, llama-server's object with a text, or a list of these. Raises BadSetting."""
    if given is None:
        raise BadSetting(
            "prompt is missing from the request", hint="give a text, tokens, or a list of either"
        )
    if isinstance(given, dict) and not given.get("multimodal_data"):
        given = given.get("prompt_string")
    if isinstance(given, str):
        return (Answer(0, text=given),)
    if not isinstance(given, list) or not given:
        raise BadSetting(f"prompt is {cut(given)}", hint="give a text, tokens, or a list of either")
    if any(isinstance(part, int) for part in given):
        if not all(type(part) in (int, str) for part in given):
            raise BadSetting(f"prompt is {cut(given)}", hint="a list with tokens has tokens and texts only")
        return (Answer(0, parts=tuple(given)),)
    if len(given) > MOST_PROMPTS:
        raise BadSetting(f"there are {len(given)} prompts", hint=f"send {MOST_PROMPTS} at most")
    return tuple(prompt for part in given for prompt in prompts_of(part))


def wants_usage(fields: Fields) -> bool:
    """Whether a stream ends with its usage."""
    stream_options = Fields(fields.take("stream_options", dict, {}), "stream_options")
    return bool(stream_options.take("include_usage", bool, False))


def chat_scores(fields: Fields) -> dict[str, Any]:
    """logprobs and top_logprobs as localspec's option. Raises BadSetting."""
    wanted, count = fields.take("logprobs", bool, False), fields.take("top_logprobs", int)
    if count and not wanted:
        raise BadSetting("top_logprobs is given without logprobs", hint="set logprobs to true")
    if count and not 0 <= count <= MOST_LOGPROBS:
        raise BadSetting(f"top_logprobs is {cut(count)}", hint=f"give a number from 0 to {MOST_LOGPROBS}")
    return {"logprobs": count or 0} if wanted else {}


def scores_of_chat(scores: Sequence[Scored]) -> dict[str, Any]:
    """For chat completions: one entry a token."""
    entries = [{**entry(s.chosen), "top_logprobs": [entry(a) for a in s.alternatives]} for s in scores]
    return {"content": entries, "refusal": None}


def scores_of_text(scores: Sequence[Scored], start: int) -> dict[str, Any]:
    """For completions: lists side by side; `start`: characters of the text before."""
    texts = [text_of(s.chosen) for s in scores]
    return {
        "tokens": texts,
        "token_logprobs": [s.chosen.logprob for s in scores],
        "top_logprobs": [{text_of(a): a.logprob for a in s.alternatives} for s in scores],
        "text_offset": [start + sum(map(len, texts[:n])) for n in range(len(texts))],
    }


def entry(found: Likelihood) -> dict[str, Any]:
    return {"token": text_of(found), "logprob": found.logprob, "bytes": found.piece}


def text_of(found: Likelihood) -> str:
    """A token's text; incomplete characters become U+FFFD."""
    return bytes(found.piece).decode(errors="replace")


def reason(reply: Reply) -> str:
    """OpenAI's finish_reason."""
    if reply.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


class OpenAIWriter(Writer):
    """The common part of chat and text."""

    name = chunk_name = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, asked: Asked, with_usage: bool) -> None:
        super().__init__(asked.chosen.name)
        self._asked = asked
        self._with_usage = with_usage
        self._id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    @abstractmethod
    def choice(self, index: int, done: Done) -> dict[str, Any]:
        """A whole one."""

    def whole(self, done: list[Done]) -> dict[str, Any]:
        choices = [self.choice(index, d) for index, d in enumerate(done)]
        return self._form(self.name, choices, **self._counted(done))

    def end(self, done: list[Done]) -> Iterator[bytes]:
        if self._with_usage:
            yield data_line(self._form(self.chunk_name, [], **self._counted(done)))
        yield b"data: [DONE]\n\n"

    def _form(self, name: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:  # noqa: ANN401
        return {
            "id": self._id,
            "object": name,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": f"localspec-{localspec.__version__}",
            "choices": choices,
            **more,
        }

    def _counted(self, done: list[Done]) -> dict[str, Any]:
        """The numbers of all replies, and the timings of the last one."""
        return {
            "usage": numbers.usage([d.reply for d in done], self._asked.replies),
            "timings": done[-1].timings,
        }

    def _chunk(self, choice: dict[str, Any], done: Done | None = None) -> bytes:
        """One choice; the last one has the numbers, unless a separate chunk follows."""
        more = {} if done is None or self._with_usage else {"timings": done.timings}
        return data_line(self._form(self.chunk_name, [choice], **more))


class ChatWriter(OpenAIWriter):
    """Chat completions and their chunks."""

    name, chunk_name, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, asked: Asked, with_usage: bool) -> None:
        super().__init__(asked, with_usage)
        self._calls = -1  # number of the newest one
        self._scored = False  # once a chunk had scores, every chunk has a list of them

    def choice(self, index: int, done: Done) -> dict[str, Any]:
        reply = done.reply
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["content"] = reply.text.strip() or None
            written = [(call, json.dumps(call.arguments, ensure_ascii=False)) for call in reply.tool_calls]
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}
                for call, text in written
            ]
        logprobs = scores_of_chat(done.scores) if done.scores else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason(reply)}

    def begin(self) -> Iterator[bytes]:
        for index in range(self._asked.count):
            delta = {"role": "assistant", "content": None}
            yield self._chunk({"index": index, "delta": delta, "finish_reason": None})

    def open(self) -> Iterator[bytes]:
        if self.kind is Kind.TOOL_CALL:
            self._calls += 1
            function = {"name": self.call.name, "arguments": ""}
            yield self._call_delta(id=self.call.id, type="function", function=function)

    def grow(self, text: str) -> Iterator[bytes]:
        if self.kind is Kind.TOOL_CALL:
            yield self._call_delta(function={"arguments": text})
        elif self.kind is Kind.REASONING:
            yield self._delta({"reasoning_content": text})
        else:
            yield self._delta({"content": text}, self.take_scores())

    def _call_delta(self, **told: Any) -> bytes:  # noqa: ANN401  JSON
        return self._delta({"tool_calls": [{"index": self._calls, **told}]})

    def finished(self, done: Done) -> Iterator[bytes]:
        yield self._delta({}, self.take_scores(), done)

    def _delta(self, delta: dict[str, Any], scores: Sequence[Scored] = (), done: Done | None = None) -> bytes:
        self._scored |= bool(scores or self.unsent)
        logprobs = {"logprobs": scores_of_chat(scores)} if self._scored else {}
        finish_reason = reason(done.reply) if done else None
        choice = {"index": self.index, "delta": delta, **logprobs, "finish_reason": finish_reason}
        return self._chunk(choice, done)


class TextWriter(OpenAIWriter):
    """Text completions."""

    _written = 0  # characters of the reply

    def choice(self, index: int, done: Done) -> dict[str, Any]:
        return text_choice(index, done.reply.text, reason(done.reply), done.scores)

    def grow(self, text: str) -> Iterator[bytes]:
        start, self._written = self._written, self._written + len(text)
        yield self._chunk(text_choice(self.index, text, None, self.take_scores(), start))

    def finished(self, done: Done) -> Iterator[bytes]:
        last = text_choice(self.index, "", reason(done.reply), self.take_scores(), self._written)
        yield self._chunk(last, done)


def text_choice(
    index: int, text: str, finish_reason: str | None, scores: Sequence[Scored], start: int = 0
) -> dict[str, Any]:
    logprobs = scores_of_text(scores, start) if scores else None
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
