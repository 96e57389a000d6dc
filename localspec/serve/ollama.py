"""Ollama's interface: options in, lines of JSON out."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Piece, Reply, ToolCall
from localspec.serve import numbers
from localspec.serve.bodies import Fields, Problem, cut, failed
from localspec.serve.http import Done, Interface, Prompt, Writer, answer, dumped, fields_of, unless_gone
from localspec.serve.jobs import Loaded
from localspec.serve.openai import prompt_of
from localspec.serve.options import (
    Wishes,
    checked,
    effort_options,
    length,
    own,
    refuse_others,
    seed,
    tool_options,
)
from localspec.serve.pairs import Chosen

Form = Callable[[str, str, list[dict[str, Any]]], dict[str, Any]]  # content, thinking, calls
INTERFACE_VERSION: Final = "0.12.0"  # of Ollama's interface: clients refuse old ones
_NOT_IN_GENERATE: Final = {
    "suffix": "models continue a text",
    "images": "models read text",
    "template": "the model file's own template is used",
    "context": "send the conversation to /api/chat",
}


def error_body(problem: Problem) -> object:
    return {"error": problem.message}


class Ollama(Interface):
    """The handlers."""

    async def version(self, request: Request) -> Response:
        return answer({"version": INTERFACE_VERSION})

    async def tags(self, request: Request) -> Response:
        names = self._pairs.names()
        return answer({"models": [listed(name, self._pairs.files_of(name)) for name in names]})

    async def running(self, request: Request) -> Response:
        loaded = self._jobs.loaded
        if loaded is None:
            return answer({"models": []})
        more = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0}
        context = {"context_length": loaded.ready.context_length}
        pair = loaded.ready.pair
        return answer({"models": [{**listed(pair, self._pairs.files_of(pair)), **more, **context}]})

    async def show(self, request: Request) -> Response:
        fields = await fields_of(request)
        name = fields.take("model", str) or fields.take("name", str, "")
        loaded = await self._loading(request, self._pairs.choose(name))
        told = loaded.description
        architecture = told.metadata.get("general.architecture", "")
        info: dict[str, Any] = {"general.basename": loaded.ready.target, **told.metadata}
        info[f"{architecture}.context_length"] = loaded.ready.context_length
        return answer(
            {
                **listed(name, self._pairs.files_of(name)),
                "modelfile": "",
                "parameters": "",
                "template": told.template,
                "model_info": info,
                "capabilities": ["completion", "tools", *(["thinking"] if told.reasons else [])],
            }
        )

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        messages = [as_openai(message) for message in fields.take("messages", list, [])]
        return await self._reply(request, fields, prompt_of(messages) if messages else None, chat_form)

    async def generate(self, request: Request) -> Response:
        fields = await fields_of(request)
        text, system = fields.take("prompt", str, ""), fields.take("system", str, "")
        raw = fields.take("raw", bool, False)
        fields.refuse(_NOT_IN_GENERATE)
        prompt = None
        if text and raw:
            prompt = Prompt(text=text)
        elif text:
            told = [{"role": "system", "content": system}] if system else []
            prompt = prompt_of([*told, {"role": "user", "content": text}])
        return await self._reply(request, fields, prompt, text_form)

    async def refused(self, request: Request) -> Response:
        path = request.url.path[:80]
        what = f"{path} is not supported (`localspec pull` and `localspec rm` manage pairs)"
        raise failed(501, "not_supported_error", "not_supported", what)

    async def _reply(self, request: Request, fields: Fields, prompt: Prompt | None, form: Form) -> Response:
        fields.rest.setdefault("stream", True)
        options, unknown = options_of(fields)
        asked = self._asked(fields, (prompt,) if prompt else (), Wishes(options))
        asked = replace(asked, unknown=(*unknown, *asked.unknown))
        writer = LineWriter(asked.chosen.name, form)
        if prompt is None:  # only to have the pair in memory
            await self._loading(request, asked.chosen)
            return answer(writer.line("", Kind.ANSWER, done=True, done_reason="load"))
        return await self._respond(request, asked, writer)

    async def _loading(self, request: Request, chosen: Chosen) -> Loaded:
        """The chosen pair, once it is in memory. Raises RequestFailed."""
        job = self._jobs.submit(chosen.load, None)
        try:
            await unless_gone(request, job.next())
        finally:
            job.give_up()
        loaded = self._jobs.loaded
        if loaded is None or loaded.load != chosen.load:
            raise failed(503, "unavailable_error", "loading", "another pair is being loaded")
        return loaded


_ABOUT_LOADING: Final = (
    "num_ctx", "num_batch", "num_gpu", "num_keep", "num_thread", "main_gpu", "low_vram", "use_mmap",
    "use_mlock", "numa", "penalize_newline",
)  # fmt: skip
_NANO: Final = 1_000_000_000


def options_of(fields: Fields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is asked of the reply, inside `options` and beside it; unknown names inside. Raises BadSetting."""
    inner = Fields(fields.take("options", dict, {}), "options")
    inner.drop(*_ABOUT_LOADING)
    if (count := inner.take("num_predict", int)) is not None:
        inner.rest["n_predict"] = max(count, -1)  # -2 is "until the context is full"
    options = own(inner, "stop") | length(inner) | seed(inner)
    refuse_others(inner)
    beside = {**thinking(fields), **shape(fields), **tool_options(fields)}
    fields.drop("keep_alive")
    refuse_others(fields)
    return checked({"overflow": "error", **options, **beside}), inner.unknown()


def thinking(fields: Fields) -> dict[str, Any]:
    """think: true, false, or an effort."""
    wanted = fields.rest.pop("think", None)
    if isinstance(wanted, str):
        return effort_options(wanted)
    return {} if wanted is None else {"think": wanted}


def shape(fields: Fields) -> dict[str, Any]:
    """format: "json" or a JSON schema."""
    wanted = fields.rest.pop("format", "")
    if wanted == "json":
        return {"json_schema": {"type": "object"}}
    if wanted and not isinstance(wanted, dict):
        raise BadSetting(f"format is {cut(wanted)}", hint='give "json" or a JSON schema')
    return {"json_schema": wanted} if wanted else {}


def as_openai(message: object) -> object:
    """Ollama's message in OpenAI's form, not checked. Raises BadSetting for images."""
    if not isinstance(message, dict):
        return message
    if message.get("images"):
        raise BadSetting("a message has images", hint="models read text")
    found = {**message, "reasoning": message.get("thinking")}
    if message.get("role") == "tool":
        found["tool_call_id"] = message.get("tool_call_id") or message.get("tool_name")
    return found


def chat_form(content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    return {"message": {**message, "tool_calls": calls} if calls else message}


def text_form(content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"response": content, **({"thinking": thinking} if thinking else {})}


class LineWriter(Writer):
    """One object a line; the last one has the numbers."""

    media_type = "application/x-ndjson"

    def __init__(self, model: str, form: Form) -> None:
        self._model = model
        self._form = form
        self._began = time.perf_counter()

    def line(self, text: str, kind: Kind, **more: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
        thinks = kind is Kind.REASONING
        said = self._form("" if thinks else text, text if thinks else "", [])
        return {"model": self._model, "created_at": now(), **said, "done": False, **more}

    def whole(self, done: list[Done]) -> dict[str, Any]:
        reply = done[0].reply
        said = self._form(reply.text, reply.reasoning, calls_of(reply.tool_calls))
        return {"model": self._model, "created_at": now(), **said, **self._ending(done[0])}

    def piece(self, index: int, piece: Piece) -> Iterable[bytes]:
        return [] if piece.kind is Kind.TOOL_CALL else [dumped(self.line(piece.text, piece.kind)) + b"\n"]

    def finished(self, index: int, done: Done) -> Iterator[bytes]:
        head = {"model": self._model, "created_at": now()}
        if calls := calls_of(done.reply.tool_calls):
            yield dumped({**head, **self._form("", "", calls), "done": False}) + b"\n"
        yield dumped({**head, **self._form("", "", []), **self._ending(done)}) + b"\n"

    def failed(self, problem: Problem) -> bytes:
        return dumped({"error": problem.message}) + b"\n"

    def silence(self, position: int) -> bytes:
        return b""  # lines of JSON have no comments

    def _ending(self, done: Done) -> dict[str, Any]:
        reply, stats = done.reply, done.reply.stats
        return {
            "done": True,
            "done_reason": reason(reply),
            "total_duration": int((time.perf_counter() - self._began) * _NANO),
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": int(stats.prefill_seconds * _NANO),
            "eval_count": stats.emitted,
            "eval_duration": int(stats.decode_seconds * _NANO),
            "timings": numbers.timings(reply, done.notices),
        }


def reason(reply: Reply) -> str:
    return "length" if reply.finish_reason is FinishReason.LENGTH else "stop"


def calls_of(calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    return [{"function": {"name": call.name, "arguments": dict(call.arguments)}} for call in calls]


def now() -> str:
    return written(datetime.now(UTC))


def written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def listed(name: str, files: Sequence[Path]) -> dict[str, Any]:
    """A model as Ollama's clients list it."""
    found: list[os.stat_result] = []
    with suppress(OSError):  # a file may go meanwhile
        found += [file.stat() for file in files]
    changed = max((stat.st_mtime for stat in found), default=0.0)
    details = {"format": "gguf", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    return {
        "name": name,
        "model": name,
        "modified_at": written(datetime.fromtimestamp(changed, UTC)),
        "size": sum(stat.st_size for stat in found),
        "digest": hashlib.sha256(name.encode("utf-8", "replace")).hexdigest(),
        "details": {"parent_model": "", **details},
    }
