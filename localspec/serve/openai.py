"""OpenAI's interface, and the parts that other interfaces share: prompts and the scores of tokens."""

import secrets
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

import localspec
from localspec.engine.messages import Generate
from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Likelihood, Reply, Scored
from localspec.prompt.messages import Infill, as_messages
from localspec.serve import numbers
from localspec.serve.http import Interface, Writer, answer, data_line, fields_of
from localspec.serve.options import Fields, openai_options, texts_in, whole
from localspec.serve.replies import Block, ReplyRequest, ServedReply, changed_at

MOST_PROMPTS: Final = 64  # limit of prompts in one request for completions


class OpenAI(Interface):
    async def chat(self, request: Request) -> Response:
        asked = await self._chat_request(request)
        return await self.respond(request, asked, ChatWriter(asked))

    async def input_tokens(self, request: Request) -> Response:
        return await self._counted(request, await self._chat_request(request), object="response.input_tokens")

    async def completions(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompts = prompts_of(fields.rest.pop("prompt", None))
        fields.refuse({"echo": "no reply repeats its prompt"})
        fields.as_text()
        if (best := fields.take("best_of", int)) is not None and best != fields.rest.get("n", 1):
            raise BadSetting(f"best_of cannot be {best}", hint="every reply is returned, so give only n")
        if after := fields.take("suffix", str, ""):
            prompts = tuple(before(after, prompt) for prompt in prompts)
        options = openai_options(fields, {"logprobs": whole(fields.rest.pop("logprobs", None))})
        asked = self._asked(fields, prompts, options)
        return await self.respond(request, asked, TextWriter(asked))

    async def _chat_request(self, request: Request) -> ReplyRequest:
        fields = await fields_of(request)
        prompt, options = chat_prompt(fields), openai_options(fields, chat_scores(fields))
        return self._asked(fields, (prompt,), options)

    async def models(self, request: Request) -> Response:
        listed = [self._model(name) for name in self._pairs.names()]
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return answer({"object": "list", "data": listed, "has_more": False, **ends})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return answer(self._model(name if self._pairs.small(name) else self._pairs.choose(name).name))

    def _model(self, name: str) -> dict[str, Any]:
        at = changed_at(self._pairs.files(name))
        model: dict[str, Any] = {"id": name, "object": "model", "created": int(at.timestamp())}
        model["owned_by"] = "localspec"
        model |= self._pairs.about(name)
        # Clients of Anthropic's interface read these fields.
        model |= {"type": "model", "display_name": name, "created_at": f"{at:%FT%TZ}"}
        loaded, small = self._jobs.loaded, self._pairs.small(name)
        state = "loaded" if small and small.key in self._jobs.small else "unloaded"
        if loaded is not None and self._pairs.pair_of(name) == loaded.pair:
            length, state = loaded.context_length, state if self._jobs.asleep else "loaded"
            model |= {"max_model_len": length, "context_length": length}  # names in vLLM, OpenRouter
            model["meta"] = {"n_ctx": length, "n_vocab": loaded.vocabulary_size}
        return {**model, "status": {"value": state}}


def chat_prompt(fields: Fields) -> Generate:
    """Return the prompt of a chat completion. Raises BadSetting."""
    messages = fields.need("messages", list)
    match messages:  # as in llama-server, join the parts of an unfinished reply by empty lines
        case [*_, {"role": "assistant", "content": [first, *others]} as last]:
            parts = [part for other in others for part in ({"type": "text", "text": ""}, other)]
            messages = [*messages[:-1], {**last, "content": [first, *parts]}]
    return prompt_of(messages, fields.notices)


def prompt_of(messages: list[Any], notices: list[str] | None = None) -> Generate:
    """Return a conversation as a prompt, and add a notice to `notices` for each part left out. Raises BadSetting."""
    return Generate(0, as_messages(messages, left_out=[] if notices is None else notices))


def prompts_of(given: object) -> tuple[Generate, ...]:
    prompts = tuple(Generate(0, continued=text) for text in texts_in(given, "prompt"))
    if len(prompts) > MOST_PROMPTS:
        raise BadSetting(f"the request has {len(prompts)} prompts", hint=f"send at most {MOST_PROMPTS}")
    return prompts


def before(after: str, prompt: Generate) -> Generate:
    """Return the prompt for the text between a prompt and a suffix, `after`. Raises BadSetting."""
    if not isinstance(prompt.continued, str):
        raise BadSetting("a suffix was given, but the prompt is no text", hint="give the prompt as text")
    return replace(prompt, continued=Infill(prompt.continued, after))


def chat_scores(fields: Fields) -> dict[str, Any]:
    wanted, count = fields.take("logprobs", bool, False), fields.take("top_logprobs", int)
    if count and not wanted:
        raise BadSetting("top_logprobs is given without logprobs", hint="set logprobs to true")
    return {"logprobs": count or 0} if wanted else {}


def scores_of_chat(scores: Sequence[Scored]) -> dict[str, Any]:
    entries = [{**entry(s.chosen), "top_logprobs": [*map(entry, s.alternatives)]} for s in scores]
    return {"content": entries, "refusal": None}


def entry(found: Likelihood) -> dict[str, Any]:
    return {"token": text_of(found), "logprob": found.logprob, "bytes": found.piece}


def text_of(found: Likelihood) -> str:
    return bytes(found.piece).decode(errors="replace")  # incomplete characters become U+FFFD


def reason(reply: Reply) -> str:
    if reply.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if reply.tool_calls or reply.cut_calls else "stop"


class OpenAIWriter(Writer):
    name = chunk_name = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, asked: ReplyRequest) -> None:
        super().__init__(asked.chosen.name)
        self.asked = asked
        self._id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    @abstractmethod
    def choice(self, index: int, done: ServedReply) -> dict[str, Any]: ...

    @abstractmethod
    def part(self, added: Any, done: ServedReply | None = None) -> dict[str, Any]: ...

    def empty(self) -> Iterator[bytes]:
        yield self._chunk(self.part(None))

    def finished(self, done: ServedReply) -> Iterator[bytes]:
        more = {} if self.asked.with_usage else {"timings": done.timings}
        yield self._chunk(self.part(None, done), **more)

    def whole(self, done: list[ServedReply]) -> dict[str, Any]:
        choices = [self.choice(index, each) for index, each in enumerate(done)]
        return self._form(self.name, choices, **self._counted(done))

    def end(self, done: list[ServedReply]) -> Iterator[bytes]:
        if self.asked.with_usage:
            yield data_line(self._form(self.chunk_name, [], **self._counted(done)))
        yield b"data: [DONE]\n\n"

    def _form(self, name: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self._id, "object": name, "created": self._created, "model": self._model}
        return {
            **head,
            "system_fingerprint": f"localspec-{localspec.__version__}",
            "choices": choices,
            **more,
        }

    def _counted(self, done: list[ServedReply]) -> dict[str, Any]:
        usage = numbers.usage([d.reply for d in done], self.asked.replies)
        return {"usage": usage, "timings": done[-1].timings}

    def _chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        return data_line(self._form(self.chunk_name, [choice], **(self.live | more)))


class ChatWriter(OpenAIWriter):
    name, chunk_name, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, asked: ReplyRequest) -> None:
        super().__init__(asked)
        self._calls = -1  # the index of the newest tool call; -1 before the first
        self._scored = False  # whether a chunk had scores; then later chunks have a list of scores, too

    def choice(self, index: int, done: ServedReply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": done.text(Kind.ANSWER)}
        if thoughts := done.text(Kind.REASONING):
            message["reasoning_content"] = thoughts
        if calls := [block for block in done.blocks if block.kind is Kind.TOOL_CALL]:
            message["content"] = message["content"] or None
            message["tool_calls"] = [function_of(block) for block in calls]
        logprobs = scores_of_chat(done.scores) if done.scores else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason(done.reply)}

    def begin(self) -> Iterator[bytes]:
        for index in range(self.asked.count):
            delta = {"role": "assistant", "content": None}
            yield self._chunk({"index": index, "delta": delta, "finish_reason": None})

    def open(self) -> Iterator[bytes]:
        if self.kind is Kind.TOOL_CALL:
            self._calls += 1
            call = function_of(Block(Kind.TOOL_CALL, self.blocks[-1].call))
            yield self._chunk(self.part({"tool_calls": [{"index": self._calls, **call}]}))

    def grow(self, text: str) -> Iterator[bytes]:
        if self.kind is Kind.TOOL_CALL:
            delta: dict[str, Any] = {"tool_calls": [{"index": self._calls, "function": {"arguments": text}}]}
        else:
            delta = {"reasoning_content" if self.kind is Kind.REASONING else "content": text}
        yield self._chunk(self.part(delta))

    def part(self, added: Any, done: ServedReply | None = None) -> dict[str, Any]:
        scores = self.take_scores()
        self._scored |= bool(scores)
        logprobs = {"logprobs": scores_of_chat(scores)} if self._scored else {}
        finish_reason = reason(done.reply) if done else None
        return {"index": self.index, "delta": added or {}, **logprobs, "finish_reason": finish_reason}


def function_of(block: Block) -> dict[str, Any]:
    function = {"name": block.call.name, "arguments": block.text}
    return {"id": block.call.id, "type": "function", "function": function}


class TextWriter(OpenAIWriter):
    _written = 0  # number of characters of the reply so far

    def choice(self, index: int, done: ServedReply) -> dict[str, Any]:
        return text_choice(index, done.text(Kind.ANSWER), done, done.scores)

    def grow(self, text: str) -> Iterator[bytes]:
        yield self._chunk(self.part(text))

    def part(self, added: Any, done: ServedReply | None = None) -> dict[str, Any]:
        start, text = self._written, added or ""
        self._written += len(text)
        return text_choice(self.index, text, done, self.take_scores(), start)


def text_choice(
    index: int, text: str, done: ServedReply | None, scores: Sequence[Scored], start: int = 0
) -> dict[str, Any]:
    """Return a choice with scores as parallel lists; `start`: characters of the reply before `text`."""
    texts = [text_of(s.chosen) for s in scores]
    logprobs = scores and {
        "tokens": texts,
        "token_logprobs": [s.chosen.logprob for s in scores],
        "top_logprobs": [{text_of(a): a.logprob for a in s.alternatives} for s in scores],
        "text_offset": [start + sum(map(len, texts[:n])) for n in range(len(texts))],
    }
    finish_reason = reason(done.reply) if done else None
    return {"index": index, "text": text, "logprobs": logprobs or None, "finish_reason": finish_reason}
